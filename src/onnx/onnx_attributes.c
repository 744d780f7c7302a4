/* onnx_attributes.c — which attributes each operator has, of which kind, with which values; a node that breaks this is
 * refused when the model is opened.
 *
 * A row is for operators, separated by blanks, as of an opset. Its text lists attributes: name, * if it is required, a
 * colon, the kind as a letter, and = with what is allowed: texts or numbers separated by |, or a range low..high (high
 * may be left out).
 * Values that Trunnion does not compute with are not listed as allowed, so that nothing is silently ignored. An
 * operator without a row has no attributes; names that begin with _ are notes of the exporter's.
 * Source: the schemas of the onnx package and of ONNX Runtime; suite `onnx-schemas` compares them with this table. */
#include "onnx/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// clang-format off
#define AUTO_PAD "auto_pad:s=|NOTSET|SAME_UPPER|SAME_LOWER|VALID "
#define TRANSFORM "post_transform:s=NONE|SOFTMAX|LOGISTIC|SOFTMAX_ZERO|PROBIT"
#define PLACINGS \
    "coordinate_transformation_mode:s=half_pixel|half_pixel_symmetric|pytorch_half_pixel|align_corners|asymmetric|" \
    "tf_crop_and_resize|tf_half_pixel_for_nn "
#define NODE_MODES "nodes_modes:S=LEAF|BRANCH_LEQ|BRANCH_LT|BRANCH_GTE|BRANCH_GT|BRANCH_EQ|BRANCH_NEQ "

static const onnx_attribute_row standard[] = {
    {"Abs Ceil Exp Floor Log Max Mean Min Neg Reciprocal Sqrt Sum Tanh", 1, "consumed_inputs:I"},
    {"Abs Ceil Exp Floor Log Max Mean Min Neg Reciprocal Sqrt Sum Tanh", 6, ""},
    {"Add Div Mul Sub", 1, "axis:i broadcast:i=0..1 consumed_inputs:I"},
    {"Add Div Mul Sub", 6, "axis:i broadcast:i=0..1"},
    {"Add And Div Equal Greater Less Mul Or Pow Sub Xor", 7, ""},
    {"AffineGrid", 20, "align_corners:i=0..1"},
    {"And Equal Greater Less Or Pow Xor", 1, "axis:i broadcast:i=0..1"},
    {"ArgMax ArgMin", 1, "axis:i keepdims:i=0..1"},
    {"ArgMax ArgMin", 12, "axis:i keepdims:i=0..1 select_last_index:i=0..1"},
    {"Attention", 23, "is_causal:i=0..1 kv_num_heads:i=1.. q_num_heads:i=1.. qk_matmul_output_mode:i=0..3 scale:f "
     "softcap:f=0.. softmax_precision:i=1|10|11|16"},
    {"Attention", 25, "is_causal:i=0..1 kv_num_heads:i=1.. left_window_size:i=-1.. q_num_heads:i=1.. "
     "qk_matmul_output_mode:i=0..3 right_window_size:i=-1.. scale:f softcap:f=0.. softmax_precision:i=1|10|11|16"},
    {"AveragePool MaxPool", 1, AUTO_PAD "kernel_shape*:I=1.. pads:I strides:I=1.."},
    {"AveragePool", 7, AUTO_PAD "count_include_pad:i=0..1 kernel_shape*:I=1.. pads:I strides:I=1.."},
    {"AveragePool", 10, AUTO_PAD "ceil_mode:i=0..1 count_include_pad:i=0..1 kernel_shape*:I=1.. pads:I strides:I=1.."},
    {"AveragePool", 19, AUTO_PAD "ceil_mode:i=0..1 count_include_pad:i=0..1 dilations:I=1.. kernel_shape*:I=1.. "
     "pads:I strides:I=1.."},
    {"BatchNormalization", 6, "epsilon:f=0.. is_test:i=0..1 momentum:f spatial:i=1"},
    {"BatchNormalization", 7, "epsilon:f=0.. momentum:f spatial:i=1"},
    {"BatchNormalization", 9, "epsilon:f=0.. momentum:f"},
    {"BatchNormalization", 14, "epsilon:f=0.. momentum:f training_mode:i=0..1"},
    {"Bernoulli", 15, "dtype:i=1..28 seed:f"},
    {"BitCast", 26, "to*:i=1..28"},
    {"BitShift", 11, "direction*:s=LEFT|RIGHT"},
    {"BlackmanWindow HammingWindow HannWindow", 17, "output_datatype:i=1..28 periodic:i=0..1"},
    {"Cast", 1, "to*:s"},
    {"Cast", 6, "to*:i=1..28"},
    {"Cast", 19, "saturate:i=0..1 to*:i=1..28"},
    {"Cast", 24, "round_mode:s=up|down|nearest saturate:i=0..1 to*:i=1..28"},
    {"CastLike", 15, ""},
    {"CastLike", 19, "saturate:i=0..1"},
    {"CastLike", 24, "round_mode:s=up|down|nearest saturate:i=0..1"},
    {"CausalConvWithState", 27, "activation:s=silu|swish|none"},
    {"Celu", 12, "alpha:f"},
    {"CenterCropPad", 18, "axes:I"},
    {"Clip", 1, "consumed_inputs:I max:f min:f"},
    {"Clip", 6, "max:f min:f"},
    {"Clip GatherND Range ScatterND", 11, ""},
    {"Col2Im", 18, "dilations:I=1.. pads:I strides:I=1.."},
    {"Compress OneHot Scatter", 9, "axis:i"},
    {"Concat Flatten Gather Hardmax LogSoftmax Softmax", 1, "axis:i"},
    {"Concat", 4, "axis*:i"},
    {"ConcatFromSequence", 11, "axis*:i new_axis:i=0..1"},
    {"Constant", 1, "value*:t"},
    {"Constant", 11, "sparse_value:x value:t"},
    {"Constant", 12, "sparse_value:x value:t value_float:f value_floats:F value_int:i value_ints:I value_string:s "
     "value_strings:S"},
    {"ConstantOfShape", 9, "value:t"},
    {"Conv", 1, AUTO_PAD "dilations:I=1.. group:i=1.. kernel_shape:I=1.. pads:I strides:I=1.."},
    {"ConvInteger QLinearConv", 10, AUTO_PAD "dilations:I=1.. group:i=1.. kernel_shape:I=1.. pads:I strides:I=1.."},
    {"ConvTranspose", 1, AUTO_PAD "dilations:I=1.. group:i=1.. kernel_shape:I=1.. output_padding:I output_shape:I "
     "pads:I strides:I=1.."},
    {"CumProd", 26, "exclusive:i=0..1 reverse:i=0..1"},
    {"CumSum", 11, "exclusive:i=0..1 reverse:i=0..1"},
    {"DFT", 17, "axis:i inverse:i=0..1 onesided:i=0..1"},
    {"DFT", 20, "inverse:i=0..1 onesided:i=0..1"},
    {"DeformConv", 19, "dilations:I=1.. group:i=1.. kernel_shape:I=1.. offset_group:i=1.. pads:I strides:I=1.."},
    {"DepthToSpace SpaceToDepth", 1, "blocksize*:i=1.."},
    {"DepthToSpace", 11, "blocksize*:i=1.. mode:s=DCR|CRD"},
    {"DequantizeLinear QuantizeLinear Slice", 10, ""},
    {"DequantizeLinear QuantizeLinear Split", 13, "axis:i"},
    {"DequantizeLinear", 21, "axis:i block_size:i=0.."},
    {"DequantizeLinear", 23, "axis:i block_size:i=0.. output_dtype:i=0..28"},
    {"Dropout", 7, "ratio:f=0..1"},
    {"Dropout", 12, "seed:i"},
    {"Einsum", 12, "equation*:s"},
    {"Elu LeakyRelu", 6, "alpha:f"},
    {"EyeLike", 9, "dtype:i=1..28 k:i"},
    {"GRU", 7, "activation_alpha:F activation_beta:F activations:S clip:f=0.. "
     "direction:s=forward|reverse|bidirectional "
     "hidden_size:i=1.. linear_before_reset:i=0..1"},
    {"GRU", 14, "activation_alpha:F activation_beta:F activations:S clip:f=0.. "
     "direction:s=forward|reverse|bidirectional hidden_size:i=1.. layout:i=0..1 linear_before_reset:i=0..1"},
    {"GatherElements ScatterElements", 11, "axis:i"},
    {"GatherND", 12, "batch_dims:i"},
    {"Gelu", 20, "approximate:s=none|tanh"},
    {"Gemm", 1, "alpha:f beta:f broadcast:i=0..1 transA:i=0..1 transB:i=0..1"},
    {"Gemm", 7, "alpha:f beta:f transA:i=0..1 transB:i=0..1"},
    {"GlobalLpPool", 2, "p:i=1.."},
    {"GridSample", 16, "align_corners:i=0..1 mode:s=linear|bilinear|nearest|cubic|bicubic "
     "padding_mode:s=zeros|border|reflection"},
    {"GroupNormalization", 18, "epsilon:f=0.. num_groups*:i=1.."},
    {"GroupNormalization", 21, "epsilon:f=0.. num_groups*:i=1.. stash_type:i=1|10|11|16"},
    {"HardSigmoid", 6, "alpha:f beta:f"},
    {"If", 1, "else_branch*:g then_branch*:g"},
    {"ImageDecoder", 20, "pixel_format:s=RGB|BGR|Grayscale"},
    {"InstanceNormalization", 6, "epsilon:f=0.."},
    {"IsInf", 10, "detect_negative:i=0..1 detect_positive:i=0..1"},
    {"LRN", 1, "alpha:f beta:f bias:f size*:i=1.."},
    {"LSTM", 7, "activation_alpha:F activation_beta:F activations:S clip:f=0.. "
     "direction:s=forward|reverse|bidirectional hidden_size:i=1.. input_forget:i=0..1"},
    {"LSTM", 14, "activation_alpha:F activation_beta:F activations:S clip:f=0.. "
     "direction:s=forward|reverse|bidirectional hidden_size:i=1.. input_forget:i=0..1 layout:i=0..1"},
    {"LayerNormalization", 17, "axis:i epsilon:f=0.. stash_type:i=1|10|11|16"},
    {"LinearAttention", 27, "chunk_size:i kv_num_heads*:i=1.. q_num_heads*:i=1.. scale:f "
     "update_rule:s=linear|gated|delta|gated_delta"},
    {"Loop", 1, "body*:g"},
    {"LpNormalization", 1, "axis:i p:i=1|2"},
    {"LpPool", 2, AUTO_PAD "kernel_shape*:I=1.. p:i=1.. pads:I strides:I=1.."},
    {"LpPool", 18, AUTO_PAD "ceil_mode:i=0..1 dilations:I=1.. kernel_shape*:I=1.. p:i=1.. pads:I strides:I=1.."},
    {"MaxPool", 8, AUTO_PAD "kernel_shape*:I=1.. pads:I storage_order:i=0..1 strides:I=1.."},
    {"MaxPool", 10, AUTO_PAD "ceil_mode:i=0..1 dilations:I=1.. kernel_shape*:I=1.. pads:I storage_order:i=0..1 "
     "strides:I=1.."},
    {"MaxRoiPool", 1, "pooled_shape*:I=1.. spatial_scale:f=0.."},
    {"MaxUnpool", 9, "kernel_shape*:I=1.. pads:I strides:I=1.."},
    {"MeanVarianceNormalization", 9, "axes:I"},
    {"MelWeightMatrix", 17, "output_datatype:i=1..28"},
    {"Mod", 10, "fmod:i=0..1"},
    {"Multinomial", 7, "dtype:i=6|7 sample_size:i=1.. seed:f"},
    {"NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss", 12, "ignore_index:i reduction:s=none|mean|sum"},
    {"NonMaxSuppression", 10, "center_point_box:i=0..1"},
    {"Optional", 15, "type:T"},
    {"Pad", 1, "mode:s=constant|reflect|edge|wrap value:f"},
    {"Pad", 2, "mode:s=constant|reflect|edge|wrap pads*:I value:f"},
    {"Pad", 11, "mode:s=constant|reflect|edge|wrap"},
    {"QuantizeLinear", 19, "axis:i saturate:i=0..1"},
    {"QuantizeLinear", 21, "axis:i block_size:i=0.. output_dtype:i=0..28 saturate:i=0..1"},
    {"QuantizeLinear", 23, "axis:i block_size:i=0.. output_dtype:i=0..28 precision:i=0|1|10|11|16 saturate:i=0..1"},
    {"RMSNormalization", 23, "axis:i epsilon:f=0.. stash_type:i=1|10|11|16"},
    {"RNN", 7, "activation_alpha:F activation_beta:F activations:S clip:f=0.. "
     "direction:s=forward|reverse|bidirectional "
     "hidden_size:i=1.."},
    {"RNN", 14, "activation_alpha:F activation_beta:F activations:S clip:f=0.. "
     "direction:s=forward|reverse|bidirectional hidden_size:i=1.. layout:i=0..1"},
    {"RandomNormal", 1, "dtype:i=1|10|11|16 mean:f scale:f seed:f shape*:I"},
    {"RandomNormalLike", 1, "dtype:i=1|10|11|16 mean:f scale:f seed:f"},
    {"RandomUniform", 1, "dtype:i=1|10|11|16 high:f low:f seed:f shape*:I"},
    {"RandomUniformLike", 1, "dtype:i=1|10|11|16 high:f low:f seed:f"},
    {"Range", 27, "stash_type:i=1|10|11|16"},
    {"ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
     "ReduceSumSquare", 1, "axes:I keepdims:i=0..1"},
    {"ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSumSquare", 18,
     "keepdims:i=0..1 noop_with_empty_axes:i=0..1"},
    {"ReduceSum", 13, "keepdims:i=0..1 noop_with_empty_axes:i=0..1"},
    {"RegexFullMatch", 20, "pattern:s"},
    {"Reshape", 1, "consumed_inputs:I shape:I"},
    {"Reshape", 5, ""},
    {"Reshape", 14, "allowzero:i=0..1"},
    {"Resize", 10, "mode:s=nearest|linear|bilinear|cubic"},
    {"Resize", 11, PLACINGS "cubic_coeff_a:f exclude_outside:i=0..1 extrapolation_value:f "
     "mode:s=nearest|linear|bilinear|cubic nearest_mode:s=round_prefer_floor|round_prefer_ceil|floor|ceil"},
    {"Resize", 18, "antialias:i=0..1 axes:I " PLACINGS "cubic_coeff_a:f exclude_outside:i=0..1 "
     "extrapolation_value:f keep_aspect_ratio_policy:s=stretch|not_larger|not_smaller "
     "mode:s=nearest|linear|bilinear|cubic nearest_mode:s=round_prefer_floor|round_prefer_ceil|floor|ceil"},
    {"ReverseSequence", 10, "batch_axis:i time_axis:i"},
    {"RoiAlign", 10, "mode:s=avg|max output_height:i=1.. output_width:i=1.. sampling_ratio:i=0.. spatial_scale:f=0.."},
    {"RoiAlign", 16, "coordinate_transformation_mode:s=half_pixel|output_half_pixel mode:s=avg|max "
     "output_height:i=1.. output_width:i=1.. sampling_ratio:i=0.. spatial_scale:f=0.."},
    {"RotaryEmbedding", 23, "interleaved:i=0..1 num_heads:i=1.. rotary_embedding_dim:i"},
    {"STFT", 17, "onesided:i=0..1"},
    {"Scan", 8, "body*:g directions:I=0 num_scan_inputs*:i=1.."},
    {"Scan", 9, "body*:g num_scan_inputs*:i=1.. scan_input_axes:I scan_input_directions:I=0..1 scan_output_axes:I "
     "scan_output_directions:I=0..1"},
    {"ScatterElements", 16, "axis:i reduction:s=none|add|mul|max|min"},
    {"ScatterND", 16, "reduction:s=none|add|mul|max|min"},
    {"Selu", 6, "alpha:f gamma:f"},
    {"SequenceEmpty", 11, "dtype:i=1..28"},
    {"SequenceMap", 17, "body*:g"},
    {"Shape", 1, ""},
    {"Shape", 15, "end:i start:i"},
    {"Shrink", 9, "bias:f lambd:f"},
    {"SimplifiedLayerNormalization", 1, "axis:i epsilon:f=0.. stash_type:i=1|10|11|16"},
    {"Slice", 1, "axes:I ends*:I starts*:I"},
    {"SpaceToDepth", 28, "blocksize*:i=1.. mode:s=DCR|CRD"},
    {"Split", 1, "axis:i split:I"},
    {"Split", 18, "axis:i num_outputs:i=1.."},
    {"SplitToSequence", 11, "axis:i keepdims:i=0..1"},
    {"Squeeze", 1, "axes:I"},
    {"Squeeze Unsqueeze", 13, ""},
    {"StringNormalizer", 10, "case_change_action:s=NONE|LOWER|UPPER is_case_sensitive:i=0..1 locale:s stopwords:S"},
    {"StringSplit", 20, "delimiter:s maxsplit:i"},
    {"SwiGLU", 28, "alpha:f"},
    {"Swish", 24, "alpha:f"},
    {"TensorScatter", 24, "axis:i mode:s=linear|circular"},
    {"TfIdfVectorizer", 9, "max_gram_length*:i=1.. max_skip_count*:i=0.. min_gram_length*:i=1.. "
     "mode*:s=TF|IDF|TFIDF ngram_counts*:I ngram_indexes*:I pool_int64s:I pool_strings:S weights:F"},
    {"ThresholdedRelu", 10, "alpha:f"},
    {"TopK", 1, "axis:i k*:i"},
    {"TopK", 10, "axis:i"},
    {"TopK", 11, "axis:i largest:i=0..1 sorted:i=0..1"},
    {"Transpose", 1, "perm:I"},
    {"Trilu", 14, "upper:i=0..1"},
    {"Unique", 11, "axis:i sorted:i=0..1"},
    {"Unsqueeze", 1, "axes*:I"},
    {"Upsample", 7, "mode:s=nearest|linear|bilinear scales*:F"},
    {"Upsample", 9, "mode:s=nearest|linear|bilinear"},
    {.names = NULL},
};

static const onnx_attribute_row classical[] = {
    {"Binarizer", 1, "threshold:f"},
    {"CastMap", 1, "cast_to:s=TO_FLOAT|TO_STRING|TO_INT64 map_form:s=DENSE|SPARSE max_map:i"},
    {"CategoryMapper", 1, "cats_int64s:I cats_strings:S default_int64:i default_string:s"},
    {"DictVectorizer", 1, "int64_vocabulary:I string_vocabulary:S"},
    {"FeatureVectorizer", 1, "inputdimensions:I"},
    {"Imputer", 1, "imputed_value_floats:F imputed_value_int64s:I replaced_value_float:f replaced_value_int64:i"},
    {"LabelEncoder", 1, "classes_strings:S default_int64:i default_string:s"},
    {"LabelEncoder", 2, "default_float:f default_int64:i default_string:s keys_floats:F keys_int64s:I "
     "keys_strings:S values_floats:F values_int64s:I values_strings:S"},
    {"LabelEncoder", 4, "default_float:f default_int64:i default_string:s default_tensor:t keys_floats:F "
     "keys_int64s:I keys_strings:S keys_tensor:t values_floats:F values_int64s:I values_strings:S values_tensor:t"},
    {"LinearClassifier", 1, "classlabels_ints:I classlabels_strings:S coefficients*:F intercepts:F "
     "multi_class:i=0..1 " TRANSFORM},
    {"LinearRegressor", 1, "coefficients:F intercepts:F " TRANSFORM " targets:i=1.."},
    {"Normalizer", 1, "norm:s=MAX|L1|L2"},
    {"OneHotEncoder", 1, "cats_int64s:I cats_strings:S zeros:i=0..1"},
    {"SVMClassifier", 1, "classlabels_ints:I classlabels_strings:S coefficients:F kernel_params:F "
     "kernel_type:s=LINEAR|POLY|RBF|SIGMOID " TRANSFORM " prob_a:F prob_b:F rho:F support_vectors:F "
     "vectors_per_class:I"},
    {"SVMRegressor", 1, "coefficients:F kernel_params:F kernel_type:s=LINEAR|POLY|RBF|SIGMOID n_supports:i "
     "one_class:i=0..1 " TRANSFORM " rho:F support_vectors:F"},
    {"Scaler", 1, "offset:F scale:F"},
    {"TreeEnsemble", 5, "aggregate_function:i=0..3 leaf_targetids*:I leaf_weights*:t membership_values:t "
     "n_targets:i=1.. nodes_falseleafs*:I=0..1 nodes_falsenodeids*:I nodes_featureids*:I nodes_hitrates:t "
     "nodes_missing_value_tracks_true:I=0..1 nodes_modes*:t nodes_splits*:t nodes_trueleafs*:I=0..1 "
     "nodes_truenodeids*:I post_transform:i=0..4 tree_roots*:I"},
    {"TreeEnsembleClassifier", 1, "base_values:F class_ids:I class_nodeids:I class_treeids:I class_weights:F "
     "classlabels_int64s:I classlabels_strings:S nodes_falsenodeids:I nodes_featureids:I nodes_hitrates:F "
     "nodes_missing_value_tracks_true:I=0..1 " NODE_MODES "nodes_nodeids:I nodes_treeids:I nodes_truenodeids:I "
     "nodes_values:F " TRANSFORM},
    {"TreeEnsembleClassifier", 3, "base_values:F base_values_as_tensor:t class_ids:I class_nodeids:I "
     "class_treeids:I class_weights:F class_weights_as_tensor:t classlabels_int64s:I classlabels_strings:S "
     "nodes_falsenodeids:I nodes_featureids:I nodes_hitrates:F nodes_hitrates_as_tensor:t "
     "nodes_missing_value_tracks_true:I=0..1 " NODE_MODES "nodes_nodeids:I nodes_treeids:I nodes_truenodeids:I "
     "nodes_values:F nodes_values_as_tensor:t " TRANSFORM},
    {"TreeEnsembleRegressor", 1, "aggregate_function:s=SUM|AVERAGE|MIN|MAX base_values:F n_targets:i=1.. "
     "nodes_falsenodeids:I nodes_featureids:I nodes_hitrates:F nodes_missing_value_tracks_true:I=0..1 " NODE_MODES
     "nodes_nodeids:I nodes_treeids:I nodes_truenodeids:I nodes_values:F " TRANSFORM " target_ids:I "
     "target_nodeids:I target_treeids:I target_weights:F"},
    {"TreeEnsembleRegressor", 3, "aggregate_function:s=SUM|AVERAGE|MIN|MAX base_values:F base_values_as_tensor:t "
     "n_targets:i=1.. nodes_falsenodeids:I nodes_featureids:I nodes_hitrates:F nodes_hitrates_as_tensor:t "
     "nodes_missing_value_tracks_true:I=0..1 " NODE_MODES "nodes_nodeids:I nodes_treeids:I nodes_truenodeids:I "
     "nodes_values:F nodes_values_as_tensor:t " TRANSFORM " target_ids:I target_nodeids:I target_treeids:I "
     "target_weights:F target_weights_as_tensor:t"},
    {"ZipMap", 1, "classlabels_int64s:I classlabels_strings:S"},
    {.names = NULL},
};

static const onnx_attribute_row preview[] = {
    {"FlexAttention", 1, "prob_mod:g scale:f score_mod:g softmax_precision:i=1|10|11|16"},
    {.names = NULL},
};

static const onnx_attribute_row training[] = {
    {"Adagrad", 1, "decay_factor:f epsilon:f=0.. norm_coefficient:f"},
    {"Adam", 1, "alpha:f beta:f epsilon:f=0.. norm_coefficient:f norm_coefficient_post:f"},
    {"Momentum", 1, "alpha*:f beta*:f mode*:s=standard|nesterov norm_coefficient*:f"},
    {.names = NULL},
};

static const onnx_attribute_row runtime[] = {
    {"Attention", 1, "do_rotary:i=0 mask_filter_value:f num_heads*:i=1.. past_present_share_buffer:i=0 "
     "qkv_hidden_sizes:I rotary_embedding_dim:i scale:f unidirectional:i=0..1"},
    {"CausalConvWithState", 1, "activation:s=silu|swish|none channels_last:i=0 dilation:i=1 "
     "input_channel_offset:i=0 input_channels:i=0 ndim:i=1 state_channels_last:i=-1|0 state_length:i=0 "
     "state_update_capacity:i=0 state_window:i=0"},
    {"DequantizeLinear QuantizeLinear", 1, "axis:i"},
    {"DynamicQuantizeLSTM", 1, "activation_alpha:F activation_beta:F activations:S clip:f=0.. "
     "direction:s=forward|reverse|bidirectional hidden_size:i=1.. input_forget:i=0..1"},
    {"EmbedLayerNormalization", 1, "epsilon:f=0.. mask_index_type:i"},
    {"FusedConv", 1, "activation:s activation_params:F " AUTO_PAD "dilations:I=1.. group:i=1.. kernel_shape:I=1.. "
     "pads:I strides:I=1.."},
    {"FusedGemm", 1, "activation:s activation_alpha:f activation_beta:f activation_gamma:f alpha:f beta:f "
     "transA:i=0..1 transB:i=0..1"},
    {"FusedMatMul", 1, "alpha:f transA:i=0..1 transB:i=0..1 transBatchA:i=0..1 transBatchB:i=0..1"},
    {"GatherBlockQuantized", 1, "bits:i=1.. block_size:i=0.. gather_axis:i quantize_axis:i"},
    {"GroupQueryAttention", 1, "causal:i=1 do_rotary:i=0..1 k_norm_epsilon:f=0.. k_quant_type:s=NONE "
     "kv_cache_bit_width:i=0 kv_num_heads*:i=1.. local_window_size:i=-1.. num_heads*:i=1.. q_norm_epsilon:f=0.. "
     "qk_norm_epsilon:f=0.. qk_output:i=0 rotary_interleaved:i=0..1 scale:f sliding_window_cache:i=0 smooth_softmax:i "
     "softcap:f=0.. v_quant_type:s=NONE"},
    {"LinearAttention", 1, "chunk_size:i kv_num_heads*:i=1.. q_num_heads*:i=1.. scale:f state_window:i=0 "
     "update_rule:s=linear|gated|delta|gated_delta"},
    {"MatMulNBits", 1, "K*:i=1.. N*:i=1.. accuracy_level:i bits:i=1.. block_size*:i=0.. weight_prepacked:i=0"},
    {"MultiHeadAttention", 1, "mask_filter_value:f num_heads*:i=1.. scale:f unidirectional:i=0..1"},
    {"QAttention", 1, "do_rotary:i=0 mask_filter_value:f num_heads*:i=1.. past_present_share_buffer:i=0 scale:f "
     "unidirectional:i=0..1"},
    {"QGemm TransposeMatMul", 1, "alpha:f transA:i=0..1 transB:i=0..1"},
    {"QLinearAveragePool", 1, AUTO_PAD "ceil_mode:i=0..1 channels_last:i=0 count_include_pad:i=0..1 "
     "kernel_shape*:I=1.. pads:I strides:I=1.."},
    {"QLinearConcat", 1, "axis*:i"},
    {"QLinearGlobalAveragePool", 1, "channels_last:i=0"},
    {"QLinearLeakyRelu QuickGelu", 1, "alpha:f"},
    {"QLinearReduceMean", 1, "axes*:I keepdims*:i=0..1"},
    {"QLinearSoftmax", 1, "axis:i opset*:i"},
    {"RotaryEmbedding", 1, "interleaved:i=0..1 is_packed_batching:i=0 num_heads:i=1.. rotary_embedding_dim:i "
     "scale:f=1"},
    {"SimplifiedLayerNormalization", 1, "axis:i epsilon:f=0.. stash_type:i=1|10|11|16"},
    {"SkipLayerNormalization SkipSimplifiedLayerNormalization", 1, "epsilon:f=0.."},
    {.names = NULL},
};

// clang-format on

const onnx_attribute_table onnx_attribute_tables[] = {
    {"", standard},
    {"ai.onnx.ml", classical},
    {"ai.onnx.preview", preview},
    {"ai.onnx.preview.training", training},
    {"ai.onnx.training", training},
    {"com.microsoft", runtime},
};
const int onnx_attribute_table_count = TN_COUNT(onnx_attribute_tables);

/* ---- reading rows ------------------------------------------------------------------------------------------------ */

/* By AttributeProto.AttributeType: the letter of a row, and what messages call it. */
static const struct {
    char letter;
    const char *name;
} kinds[] = {{0, "no type"},   {'f', "a float"},         {'i', "an integer"},   {'s', "a string"}, {'t', "a tensor"},
             {'g', "a graph"}, {'F', "floats"},          {'I', "integers"},     {'S', "strings"},  {0, "tensors"},
             {'G', "graphs"},  {'x', "a sparse tensor"}, {0, "sparse tensors"}, {'T', "a type"}};

static int kind_of_letter(char letter) {
    for (int k = 1; k < (int)TN_COUNT(kinds); k++)
        if (kinds[k].letter == letter) return k;
    return 0;
}

bool onnx_next_rule(const char **attributes, onnx_rule *rule) {
    const char *at = *attributes + strspn(*attributes, " "), *end = at + strcspn(at, " "), *colon = at;
    if (at == end) return false;
    while (*colon != ':')
        colon++;
    rule->required = colon[-1] == '*';
    rule->name = (onnx_text){at, (size_t)(colon - at) - rule->required};
    rule->kind = kind_of_letter(colon[1]);
    const char *values = colon + 2 < end ? colon + 3 : end;
    rule->allowed = (onnx_text){values, (size_t)(end - values)};
    *attributes = end;
    return true;
}

/* Is `word` in a list whose words are separated by blanks? */
static bool lists(const char *list, onnx_text word) {
    for (size_t length; *list; list += length + (list[length] == ' ')) {
        length = strcspn(list, " ");
        if (onnx_text_equal((onnx_text){list, length}, word)) return true;
    }
    return false;
}

/* Chooses the newest row whose opset is not above the model's; if none is, the oldest row. */
static bool suits_better(const onnx_attribute_row *r, const onnx_attribute_row *best, int opset) {
    bool reached = r->since <= opset;
    if (!best || reached != (best->since <= opset)) return !best || reached;
    return reached ? r->since > best->since : r->since < best->since;
}

static const onnx_attribute_row *find_row(const onnx_node *n) {
    const onnx_attribute_row *best = NULL;
    for (int t = 0; t < onnx_attribute_table_count; t++) {
        const onnx_text domain = {onnx_attribute_tables[t].domain, strlen(onnx_attribute_tables[t].domain)};
        if (!onnx_same_domain(n->domain, domain)) continue;
        for (const onnx_attribute_row *r = onnx_attribute_tables[t].rows; r->names; r++)
            if (suits_better(r, best, n->opset) && lists(r->names, n->type)) best = r;
    }
    return best;
}

static bool find_rule(const char *attributes, onnx_text name, onnx_rule *rule) {
    while (onnx_next_rule(&attributes, rule))
        if (onnx_text_equal(rule->name, name)) return true;
    return false;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* The alternative before the next | of `rest`, which is cut off; false after the last. */
static bool next_choice(onnx_text *rest, onnx_text *choice) {
    if (!rest->at) return false;
    const char *bar = rest->size ? memchr(rest->at, '|', rest->size) : NULL;
    size_t size = bar ? (size_t)(bar - rest->at) : rest->size;
    *choice = (onnx_text){rest->at, size};
    *rest = bar ? (onnx_text){bar + 1, rest->size - size - 1} : (onnx_text){NULL, 0};
    return true;
}

static bool text_is_allowed(onnx_text allowed, onnx_text value) {
    onnx_text choice;
    while (next_choice(&allowed, &choice))
        if (onnx_text_equal(choice, value)) return true;
    return false;
}

/* Numbers of a rule are written in this file, so strtoll stops after them. */
static bool number_is_allowed(onnx_text allowed, double value) {
    char *end;
    onnx_text choice;
    double low = (double)strtoll(allowed.at, &end, 10);
    if (end[0] == '.') {
        bool bounded = end + 2 < allowed.at + allowed.size;
        return value >= low && (!bounded || value <= (double)strtoll(end + 2, NULL, 10));
    }
    while (next_choice(&allowed, &choice))
        if (value == (double)strtoll(choice.at, NULL, 10)) return true;
    return false;
}

static void describe_allowed(onnx_text allowed, tn_str *s) {
    for (size_t i = 0; i < allowed.size; i++) {
        bool range = allowed.at[i] == '.', open = range && i + 2 == allowed.size;
        if (range)
            tn_str_add(s, "%s", open ? " and more" : " to "), i++;
        else if (allowed.at[i] == '|')
            tn_str_add(s, "%s", i ? ", " : "'', ");
        else
            tn_str_addn(s, allowed.at + i, 1);
    }
}

static tn_status refuse_value(const onnx_node *n, const onnx_rule *r, const char *value, size_t size) {
    tn_str s = {0};
    describe_allowed(r->allowed, &s);
    tn_fail(TN_ERR_UNSUPPORTED, "attribute '%.*s' is %.*s; supported values: %s", (int)r->name.size, r->name.at,
            (int)tn_min64((int64_t)size, 120), value, tn_str_text(&s));
    tn_str_free(&s);
    return onnx_at_node(n, TN_ERR_UNSUPPORTED);
}

static tn_status check_number(const onnx_node *n, const onnx_rule *r, double value) {
    char text[32];
    if (number_is_allowed(r->allowed, value)) return TN_OK;
    return refuse_value(n, r, text, (size_t)snprintf(text, sizeof text, "%.17g", value));
}

static tn_status check_text(const onnx_node *n, const onnx_rule *r, onnx_text value) {
    if (text_is_allowed(r->allowed, value)) return TN_OK;
    return refuse_value(n, r, value.size ? value.at : "''", value.size ? value.size : 2);
}

/* a has the rule's kind. */
static tn_status check_value(const onnx_node *n, const onnx_rule *r, const onnx_attribute *a) {
    if (!r->allowed.size) return TN_OK;
    switch (r->kind) {
    case ONNX_KIND_FLOAT: return check_number(n, r, (double)a->f);
    case ONNX_KIND_INT: return check_number(n, r, (double)a->i);
    case ONNX_KIND_STRING: return check_text(n, r, a->s);
    default: break;
    }
    for (size_t i = 0; i < a->count; i++)
        TRY(r->kind == ONNX_KIND_INTS ? check_number(n, r, (double)a->ints[i]) : check_text(n, r, a->strings[i]));
    return TN_OK;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static tn_status refuse_name(const onnx_node *n, onnx_text name, const char *why) {
    tn_fail(TN_ERR_FORMAT, "attribute '%.*s' %s", (int)tn_min64((int64_t)name.size, 120), name.size ? name.at : "",
            why);
    return onnx_at_node(n, TN_ERR_FORMAT);
}

static tn_status check_kind(const onnx_node *n, const onnx_rule *r, const onnx_attribute *a) {
    char why[80];
    /* A list without items has no kind in files of the format's first years. */
    bool list = r->kind >= ONNX_KIND_FLOATS && r->kind <= ONNX_KIND_STRINGS;
    if (a->kind == r->kind || (list && a->kind == 0)) return TN_OK;
    bool known = a->kind > 0 && a->kind < (int)TN_COUNT(kinds);
    snprintf(why, sizeof why, "must be %s, not %s", kinds[r->kind].name, kinds[known ? a->kind : 0].name);
    return refuse_name(n, r->name, why);
}

static tn_status check_attribute(const onnx_node *n, const onnx_rule *r, const onnx_attribute *a) {
    TRY(check_kind(n, r, a));
    return a->reference.size ? TN_OK : check_value(n, r, a);
}

static tn_status check_required(const onnx_node *n, const char *attributes) {
    onnx_rule r;
    while (onnx_next_rule(&attributes, &r)) {
        bool there = !r.required;
        for (int i = 0; i < n->attribute_count && !there; i++)
            there = onnx_text_equal(n->attributes[i].name, r.name);
        if (!there) return refuse_name(n, r.name, "is missing");
    }
    return TN_OK;
}

static const char *attributes_of(const onnx_node *n) {
    const onnx_attribute_row *row = find_row(n);
    return row ? row->attributes : "";
}

tn_status onnx_check_attributes(const onnx_node *n) {
    const char *attributes = attributes_of(n);
    for (int i = 0; i < n->attribute_count; i++) {
        const onnx_attribute *a = &n->attributes[i];
        onnx_rule r;
        if (a->name.size && a->name.at[0] == '_') continue;
        for (int k = 0; k < i; k++)
            if (onnx_text_equal(n->attributes[k].name, a->name)) return refuse_name(n, a->name, "is given twice");
        if (!find_rule(attributes, a->name, &r))
            return refuse_name(n, a->name, "is unknown: misspelled, from another opset, or not supported");
        TRY(check_attribute(n, &r, a));
    }
    return check_required(n, attributes);
}

tn_status onnx_check_references(const onnx_call *c) {
    const char *attributes = attributes_of(c->node);
    for (int i = 0; i < c->node->attribute_count; i++) {
        const onnx_attribute *a = &c->node->attributes[i];
        onnx_rule r;
        if (!a->reference.size || !find_rule(attributes, a->name, &r)) continue;
        a = onnx_follow(c, a);
        if (a) TRY(check_attribute(c->node, &r, a));
        if (!a && r.required) return refuse_name(c->node, r.name, "is missing: the function was called without it");
    }
    return TN_OK;
}
