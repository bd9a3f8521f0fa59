"""The functions that may be run again, each with the kind of arithmetic that it does."""

from __future__ import annotations

from enum import StrEnum

from dumpcmp.nouns.op_names import OpSet, OpTable


class FunctionKind(StrEnum):
    """What a function does with its elements, which decides how its rounding is bounded."""

    MOVES = "moves"  # copies, casts, chooses by a mask or an index: every bit is known
    ELEMENTWISE = "elementwise"  # one element of each input for one of the output
    ADDS = "adds"  # the same, of terms that may cancel
    CONTRACTS = "contracts"  # sums of products: matmul, convolution
    SUMS = "sums"
    NORMALISES = "normalises"  # subtracts a mean, divides by a spread
    COMPOSES = "composes"  # several of these in one: attention, losses, recurrent layers
    SCANS = "scans"  # sums in which every step is rounded to the output's dtype
    CHOOSES = "chooses"  # gives out indices, or what lies at them
    DRAWS = "draws"  # random numbers
    NOTHING = "nothing"  # memory as it was found


_WORDS = {
    FunctionKind.MOVES: """
    H T _conj _conj_copy _neg_view _neg_view_copy _reshape_alias _reshape_alias_copy
    _reshape_copy _shape_as_tensor _to_copy _unsafe_index _unsafe_index_put _unsafe_masked_index
    _unsafe_view abs adjoint alias alias_copy amax amin and argwhere as_strided as_strided_copy
    as_strided_scatter atleast_1d atleast_2d atleast_3d bfloat16 bincount bitwise_and
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor block_diag bool
    broadcast_tensors broadcast_to bucketize byte cartesian_prod cat cdouble ceil cfloat chalf
    channel_shuffle char chunk clamp clamp_max clamp_min clip clone column_stack combinations
    complex conj conj_physical constant_pad_nd contiguous copy copysign count_nonzero cpu cuda
    data dequantize detach detach_copy diag diag_embed diagflat diagonal diagonal_backward
    diagonal_copy diagonal_scatter double dsplit dstack embedding expand expand_as
    expand_copy eye fill fill_diagonal fix flatten flip fliplr flipud float floor fmax
    fmin frac frexp full full_like gather gcd getitem half hardtanh hardtanh_backward heaviside
    histc hsplit hstack imag index index_copy index_fill index_put index_select int invert
    isfinite isin isinf isnan isneginf isposinf isreal lcm lift lift_fresh lift_fresh_copy
    linalg_diagonal logical_and logical_not logical_or logical_xor long lshift mH mT masked_fill
    masked_scatter masked_select max max_pool1d max_pool2d max_pool3d max_unpool1d max_unpool2d
    max_unpool3d maximum meshgrid min minimum moveaxis movedim narrow narrow_copy
    native_channel_shuffle neg negative new_full new_ones new_tensor new_zeros nextafter
    nonzero_static not one_hot ones ones_like or pad permute permute_copy pixel_shuffle
    pixel_unshuffle pos positive ravel real reflection_pad1d reflection_pad2d reflection_pad3d
    relu relu6 repeat repeat_interleave replication_pad1d replication_pad2d replication_pad3d
    reshape reshape_as resolve_conj resolve_neg roll rot90 round rshift scalar_tensor scatter
    select select_backward select_copy select_scatter setitem sgn short sign signbit slice
    slice_backward slice_copy slice_scatter split split_copy split_with_sizes
    split_with_sizes_copy squeeze squeeze_copy stack swapaxes swapdims t t_copy take
    take_along_dim tensor tensor_split threshold threshold_backward tile to transpose
    transpose_copy tril tril_indices triu triu_indices trunc type type_as unbind unbind_copy
    unflatten unfold unfold_copy unravel_index unsafe_chunk unsafe_split unsafe_split_with_sizes
    unsqueeze unsqueeze_copy view view_as view_as_complex view_as_complex_copy view_as_real
    view_as_real_copy view_copy vsplit vstack where xor zero zeros zeros_like
    """,
    FunctionKind.ELEMENTWISE: """
    _prelu_kernel _prelu_kernel_backward acos acosh angle arange arccos arccosh arcsin
    arcsinh arctan arctan2 arctanh asin asinh atan atan2 atanh celu cos cosh deg2rad div
    divide elu erf erfc exp exp2 expm1 float_power gelu gelu_backward hardshrink
    hardsigmoid hardsigmoid_backward hardswish hardswish_backward hypot ldexp leaky_relu
    leaky_relu_backward linspace log log10 log1p log2 log_sigmoid log_sigmoid_backward
    log_sigmoid_forward logit_backward logsigmoid logspace mish mish_backward mul
    multiply nan_to_num native_dropout_backward outer polar pow prelu rad2deg reciprocal
    rrelu rrelu_with_noise_backward rsqrt selu sigmoid sigmoid_backward silu
    silu_backward sin sinh softplus softplus_backward softshrink softsign special_erf
    special_erfc special_exp2 special_expit special_expm1 special_log1p sqrt square tan
    tanh tanh_backward true_divide
    """,
    FunctionKind.ADDS: """
    add addcdiv addcmul lerp rsub sub subtract
    """,
    FunctionKind.CONTRACTS: """
    _addmm_activation _convolution _grouped_mm _int_mm _scaled_mm addbmm addmm addmv baddbmm
    bilinear bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d
    conv_transpose2d conv_transpose3d convolution convolution_backward cudnn_convolution
    dot einsum grouped_mm grouped_mm_fallback inner kron linalg_matmul linalg_multi_dot
    linalg_vecdot linear matmul mkldnn_convolution mm mv tensordot vdot vecdot
    """,
    FunctionKind.SUMS: """
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
    _adaptive_avg_pool3d_backward _embedding_bag adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d avg_pool1d avg_pool2d avg_pool2d_backward avg_pool3d
    avg_pool3d_backward embedding_bag embedding_dense_backward index_add index_reduce
    max_pool2d_with_indices_backward max_pool3d_with_indices_backward mean nanmean
    nansum scatter_add scatter_reduce segment_reduce sum sum_to_size trace
    unfold_backward upsample_nearest1d_backward upsample_nearest2d_backward
    upsample_nearest3d_backward
    """,
    FunctionKind.NORMALISES: """
    _fused_rms_norm _native_batch_norm_legit _native_batch_norm_legit_no_training
    batch_norm cudnn_batch_norm group_norm instance_norm layer_norm native_batch_norm
    native_group_norm native_layer_norm rms_norm
    """,
    FunctionKind.COMPOSES: """
    _fused_rms_norm_backward _log_softmax _log_softmax_backward_data
    _native_multi_head_attention _safe_softmax _scaled_dot_product_attention_math
    _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
    _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
    _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward _softmax _softmax_backward_data
    _transformer_encoder_layer_fwd addr affine_grid affine_grid_generator binary_cross_entropy
    binary_cross_entropy_backward binary_cross_entropy_with_logits cdist cholesky
    cholesky_inverse cholesky_solve col2im corrcoef cosine_embedding_loss cosine_similarity cov
    cross cross_entropy cross_entropy_loss ctc_loss cudnn_batch_norm_backward det diff digamma
    dist elu_backward erfinv fft_fft fft_fft2 fft_fftfreq fft_fftn fft_fftshift fft_hfft
    fft_hfft2 fft_hfftn fft_ifft fft_ifft2 fft_ifftn fft_ifftshift fft_ihfft fft_ihfft2
    fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftfreq fft_rfftn
    floor_divide fma fmod fold frobenius_norm gaussian_nll_loss glu glu_backward gradient
    grid_sample grid_sampler grid_sampler_2d grid_sampler_3d gru gru_cell hinge_embedding_loss
    huber_loss huber_loss_backward i0 igamma igammac im2col interpolate inverse istft kl_div
    l1_loss lgamma linalg_cholesky linalg_cholesky_ex linalg_cond linalg_cross linalg_det
    linalg_eigvalsh linalg_inv linalg_inv_ex linalg_lu_solve linalg_matrix_exp
    linalg_matrix_norm linalg_matrix_power linalg_norm linalg_pinv linalg_slogdet linalg_solve
    linalg_solve_ex linalg_solve_triangular linalg_svdvals linalg_tensorinv linalg_tensorsolve
    linalg_vander linalg_vector_norm local_response_norm log_softmax logaddexp logaddexp2 logdet
    logit logsumexp lp_pool1d lp_pool2d lp_pool3d lstm lstm_cell lu_solve margin_ranking_loss
    matrix_exp matrix_power mse_loss mse_loss_backward multi_head_attention_forward
    multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss mvlgamma nanquantile
    native_batch_norm_backward native_group_norm_backward native_layer_norm_backward nll_loss
    nll_loss2d nll_loss2d_backward nll_loss2d_forward nll_loss_backward nll_loss_forward
    nll_loss_nd norm norm_except_dim normalize nuclear_norm pairwise_distance pdist pinverse
    poisson_nll_loss polygamma prod quantile remainder renorm rnn_relu rnn_relu_cell rnn_tanh
    rnn_tanh_cell scaled_dot_product_attention sinc slogdet smooth_l1_loss
    smooth_l1_loss_backward soft_margin_loss softmax softmin special_airy_ai special_bessel_j0
    special_bessel_j1 special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t
    special_chebyshev_polynomial_u special_digamma special_entr special_erfcx special_erfinv
    special_gammainc special_gammaincc special_gammaln special_hermite_polynomial_h
    special_hermite_polynomial_he special_i0 special_i0e special_i1 special_i1e
    special_laguerre_polynomial_l special_legendre_polynomial_p special_log_ndtr
    special_log_softmax special_logit special_logsumexp special_modified_bessel_i0
    special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
    special_ndtr special_ndtri special_polygamma special_psi special_scaled_modified_bessel_k0
    special_scaled_modified_bessel_k1 special_sinc special_softmax special_spherical_bessel_j0
    special_xlog1py special_xlogy special_zeta std std_mean stft tanhshrink trapezoid
    triangular_solve triplet_margin_loss triplet_margin_with_distance_loss upsample
    upsample_bicubic2d upsample_bicubic2d_backward upsample_bilinear2d upsample_bilinear2d_backward
    upsample_linear1d upsample_linear1d_backward upsample_nearest1d upsample_nearest2d
    upsample_nearest3d upsample_trilinear3d upsample_trilinear3d_backward var var_mean xlogy
    """,
    FunctionKind.SCANS: "cumsum cumprod logcumsumexp cumulative_trapezoid",
    FunctionKind.CHOOSES: """
    _unique _unique2 adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d all aminmax any
    argmax argmin argsort cummax cummin eq ge greater greater_equal gt isclose kthvalue le less
    less_equal lt max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices median
    mode msort nanmedian ne nonzero not_equal searchsorted sort topk unique unique_consecutive
    """,
    FunctionKind.DRAWS: """
    alpha_dropout bernoulli dropout dropout1d dropout2d dropout3d exponential
    feature_alpha_dropout feature_dropout gumbel_softmax multinomial native_dropout normal rand
    rand_like randint randint_like randn randn_like randperm uniform
    """,
    FunctionKind.NOTHING: """
    empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize
    """,
}

# Functions whose result is another in a longer dtype: they are run in that of the program.
BY_DTYPE = OpSet("nextafter")

KINDS = OpTable({word: kind for kind, words in _WORDS.items() for word in words.split()})
