"""https://github.com/NVIDIA/Megatron-LM/issues/7452#11_gdn_out_norm_missing_tp_sum."""
