"""The environment variables that change what a program computes, and how fast: facts of a run."""

import os

# Names of switches and numbers alone: no paths, no names of machines, nothing that is secret.
SETTINGS = (
    "ATEN_CPU_CAPABILITY", "CUBLAS_WORKSPACE_CONFIG", "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES", "DNNL_DEFAULT_FPMATH_MODE", "HIP_VISIBLE_DEVICES", "MKL_CBWR",
    "MKL_NUM_THREADS", "NCCL_ALGO", "NCCL_PROTO", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS",
    "ONEDNN_DEFAULT_FPMATH_MODE", "OPENBLAS_NUM_THREADS", "PYTHONHASHSEED",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_TUNABLEOP_ENABLED", "TORCHDYNAMO_DISABLE",
    "TORCHINDUCTOR_FREEZING", "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT", "TRITON_INTERPRET",
)  # fmt: skip


def settings() -> dict[str, str]:
    """Those of the variables that are set."""
    return {name: os.environ[name] for name in SETTINGS if name in os.environ}
