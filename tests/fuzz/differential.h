// One random graph through a part of the compiler, compared with the reference evaluator.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fuzz/random_graph.h"
#include "ir/tensor.h"

namespace ingot::fuzz {

/// Carries out a graph on dense inputs; outputs are dense.
using Executor = std::function<std::vector<Tensor>(const Graph&, const std::vector<Tensor>&)>;

/// The passes alone, evaluated plainly.
std::vector<Tensor> through_passes(const Graph& graph, const std::vector<Tensor>& inputs);
/// Passes, scheduler and interpreted loop nests.
std::vector<Tensor> through_plan(const Graph& graph, const std::vector<Tensor>& inputs);
/// Passes, scheduler and machine code for this machine.
std::vector<Tensor> through_code(const Graph& graph, const std::vector<Tensor>& inputs);
/// The same, each kernel compared with its interpreted self on the same memory.
std::vector<Tensor> through_kernels(const Graph& graph, const std::vector<Tensor>& inputs);

/// What is wrong with seed `seed`, with the graph's text; nothing when all agrees.
std::optional<std::string> differs(std::uint64_t seed, const Limits& limits,
                                   const Executor& execute);

}  // namespace ingot::fuzz
