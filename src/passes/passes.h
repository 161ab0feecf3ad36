// Every pass, in the order of first use in the pipeline; each is described in its own file.
#pragma once
#include "passes/pipeline.h"

namespace ingot {

Graph simplify(const Graph& graph, const PassContext& context);
Graph fold_constants(const Graph& graph, const PassContext& context);
Graph eliminate_common(const Graph& graph, const PassContext& context);
Graph eliminate_dead(const Graph& graph, const PassContext& context);
Graph few_channels(const Graph& graph, const PassContext& context);
Graph fold_frozen(const Graph& graph, const PassContext& context);
Graph merge_matmuls(const Graph& graph, const PassContext& context);
Graph fuse_convolution(const Graph& graph, const PassContext& context);
Graph fuse_linear(const Graph& graph, const PassContext& context);
Graph join_parts(const Graph& graph, const PassContext& context);
Graph align_columns(const Graph& graph, const PassContext& context);
Graph pack_contractions(const Graph& graph, const PassContext& context);
Graph widen_products(const Graph& graph, const PassContext& context);
Graph recompute(const Graph& graph, const PassContext& context);

}  // namespace ingot
