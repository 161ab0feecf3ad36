// The partition on text: every case of tests/passes/partition/*.ir is a query, a joint graph, and
// the forward and the backward that it becomes. Both halves are verified, and evaluated one after
// the other against the joint graph. INGOT_BLESS=1 writes the expected parts anew.
//
//     # forward: 1, tangents: 2, unreadable:, budget: 1
//     <joint graph>
//     ---
//     <forward>
//     ---
//     <backward>
//     === (before the next case)
#include "passes/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "ir/parse.h"
#include "ir/print.h"
#include "ir/reference.h"
#include "ir/verify.h"
#include "passes/max_flow.h"
#include "passes/passes.h"

namespace ingot {
namespace {

std::vector<std::string> split(const std::string& text, const std::string& mark) {
    std::vector<std::string> parts;
    std::size_t at = 0;
    for (std::size_t next; (next = text.find(mark, at)) != std::string::npos;
         at = next + mark.size())
        parts.push_back(text.substr(at, next - at));
    parts.push_back(text.substr(at));
    return parts;
}

/// The numbers behind `key:` up to a comma or the end of the line.
std::vector<double> field(const std::string& text, const std::string& key) {
    const std::size_t at = text.find(key + ":");
    EXPECT_NE(at, std::string::npos) << key;
    std::istringstream in(
        text.substr(at + key.size() + 1, text.find_first_of(",\n", at) - at - key.size() - 1));
    std::vector<double> numbers;
    for (double n = 0; in >> n;) numbers.push_back(n);
    return numbers;
}

PartitionQuery query_of(const std::string& text, const Graph& joint) {
    PartitionQuery query;
    query.forward_outputs = static_cast<std::size_t>(field(text, "forward").at(0));
    for (double t : field(text, "tangents")) query.tangents.push_back(static_cast<std::int32_t>(t));
    query.readable_in_backward.assign(joint.inputs().size(), true);
    for (double i : field(text, "unreadable"))
        query.readable_in_backward[static_cast<std::size_t>(i)] = false;
    query.memory_budget = field(text, "budget").at(0);
    return query;
}

void expect_same_meaning(const Graph& joint, const PartitionQuery& query, const Partition& parts) {
    std::mt19937 random(3);
    auto number = [](Expr) { return std::int64_t{3}; };
    std::vector<Tensor> all, forward, backward;
    for (const Input& in : joint.inputs()) {
        Ints sizes;
        for (Expr e : joint.type(in.value).sizes) sizes.push_back(e.constant());
        Tensor t(joint.type(in.value).dtype, sizes);
        for (std::int64_t i = 0; i < t.numel(); ++i)
            t.set(i, {static_cast<double>(random() % 100) / 50 - 1, 0, 0});
        all.push_back(t);
    }
    auto is_tangent = [&](std::size_t i) {
        return std::find(query.tangents.begin(), query.tangents.end(),
                         static_cast<std::int32_t>(i)) != query.tangents.end();
    };
    for (std::size_t i = 0; i < all.size(); ++i)
        if (!is_tangent(i)) forward.push_back(all[i]);
    auto results = evaluate(parts.forward, forward, number);
    for (const SavedValue& s : parts.saved)
        backward.push_back(s.from == SavedValue::From::Input
                               ? all[static_cast<std::size_t>(s.index)]
                               : results[static_cast<std::size_t>(s.index)]);
    for (std::int32_t t : query.tangents) backward.push_back(all[static_cast<std::size_t>(t)]);
    auto gradients = evaluate(parts.backward, backward, number);
    auto want = evaluate(joint, all, number);
    results.resize(query.forward_outputs);
    results.insert(results.end(), gradients.begin(), gradients.end());
    ASSERT_EQ(results.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i)
        for (std::int64_t k = 0; k < want[i].numel(); ++k)
            ASSERT_EQ(results[i].get(k).re, want[i].get(k).re) << "output " << i;
}

TEST(Partition, TextCases) {
    const bool bless = std::getenv("INGOT_BLESS") != nullptr;
    std::size_t cases = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(INGOT_TEST_DATA "/passes/partition")) {
        std::ifstream in(entry.path());
        const std::string text{std::istreambuf_iterator<char>(in), {}};
        std::string whole;
        for (const std::string& one : split(text, "===\n")) {
            SCOPED_TRACE(entry.path().filename().string() + ", case " + std::to_string(++cases));
            auto parts = split(one, "---\n");
            Graph joint = parse_graph(parts[0]);
            verify(joint);
            const PartitionQuery query = query_of(parts[0], joint);
            const Partition got = partition(joint, query);
            verify(got.forward);
            verify(got.backward);
            const std::string halves = to_string(got.forward) + "---\n" + to_string(got.backward);
            if (!bless) {
                ASSERT_EQ(parts.size(), 3u);
                EXPECT_EQ(halves, parts[1] + "---\n" + parts[2]);
            }
            expect_same_meaning(joint, query, got);
            whole += (whole.empty() ? "" : "===\n") + parts[0] + "---\n" + halves;
        }
        if (bless) std::ofstream(entry.path()) << whole;
    }
    EXPECT_GT(cases, 0u);
}

std::size_t count_of(const Graph& g, Prim prim) {
    return static_cast<std::size_t>(
        std::ranges::count_if(g.nodes(), [&](const Node& n) { return n.prim == prim; }));
}

/// The partition with and without values that are kept because the forward has them in memory;
/// input 1 is a parameter and input 2 the tangent.
std::pair<Partition, Partition> with_and_without_kept(const std::string& text) {
    const Graph joint = parse_graph(text);
    verify(joint);
    PartitionQuery query;
    query.forward_outputs = 1;
    query.tangents = {2};
    query.readable_in_backward.assign(3, true);
    Partition without = partition(joint, query);
    query.parameters = {false, true, false};
    Partition with = partition(joint, query);
    expect_same_meaning(joint, query, with);
    return {std::move(with), std::move(without)};
}

TEST(Partition, KeepsSumsThatAreCarriedFromLayerToLayer) {
    std::string text = "graph(%x0: f32[4, 4], %w: f32[4, 4], %g: f32[4, 4]) {\n";
    constexpr int kLayers = 8;
    for (int k = 1; k <= kLayers; ++k) {
        const std::string now = std::to_string(k), before = std::to_string(k - 1);
        text += "  %n" + now + " = sin(%x" + before + ")\n  %b" + now + " = matmul(%n" + now +
                ", %w)\n  %x" + now + " = add(%x" + before + ", %b" + now + ")\n";
    }
    text += "  %y = exp(%x" + std::to_string(kLayers) + ")\n";
    for (int k = kLayers; k > 0; --k)
        text += "  %c" + std::to_string(k) + " = cos(%x" + std::to_string(k) + ")\n  %d" +
                std::to_string(k) + " = mul(%c" + std::to_string(k) + ", " +
                (k == kLayers ? "%g" : "%d" + std::to_string(k + 1)) + ")\n";
    const auto [with, without] = with_and_without_kept(text + "  return %y, %d1\n}\n");
    EXPECT_EQ(count_of(without.backward, Prim::Add), kLayers);
    EXPECT_LE(count_of(with.backward, Prim::Add), 3u);  // the first and the last ones
}

TEST(Partition, ComputesNoImageAgainThatNeedsAnotherOne) {
    const std::string conv =
        ", %w) {stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1, transposed=false, "
        "output_padding=(0, 0)}\n";
    std::string text =
        "graph(%x: f32[1, 2, 4, 4], %w: f32[2, 2, 1, 1], %g: f32[1, 2, 4, 4]) {\n"
        "  %r0 = relu(%x)\n";
    constexpr int kLayers = 12;
    for (int k = 1; k <= kLayers; ++k) {
        const std::string now = std::to_string(k), before = std::to_string(k - 1);
        text += "  %c" + now + " = conv(%r" + before + conv + "  %s" + now + " = mul(%r" + before +
                ", %c" + now + ")\n  %r" + now + " = relu(%s" + now + ")\n";
    }
    text += "  %d" + std::to_string(kLayers) + " = mul(%r" + std::to_string(kLayers) + ", %g)\n";
    for (int k = kLayers - 1; k > 0; --k)
        text += "  %e" + std::to_string(k) + " = mul(%c" + std::to_string(k) + ", %d" +
                std::to_string(k + 1) + ")\n  %d" + std::to_string(k) + " = mul(%r" +
                std::to_string(k) + ", %e" + std::to_string(k) + ")\n";
    const auto [with, without] =
        with_and_without_kept(text + "  return %r" + std::to_string(kLayers) + ", %d1\n}\n");
    // Some are computed again, but each from what was saved.
    std::size_t again = 0;
    std::vector<bool> computed(with.backward.values().size(), false);
    for (const Node& n : with.backward.nodes()) {
        bool from_computed = false;
        for (ValueId v : n.operands) from_computed = from_computed || computed[v];
        if (n.prim != Prim::Relu) {
            if (n.prim == Prim::Mul) computed[n.results[0]] = from_computed;
            continue;
        }
        ++again;
        EXPECT_FALSE(from_computed);
        computed[n.results[0]] = true;
    }
    EXPECT_GE(again, 1u);
    EXPECT_LT(again, count_of(without.backward, Prim::Relu));
}

TEST(Partition, RefusesWhatTheBackwardMayNotRead) {
    const std::string text =
        "graph(%x: f32[4], %g: f32[4]) {\n  %y = sin(%x)\n  %d = mul(%x, %g)\n  return %y, %d\n}\n";
    Graph joint = parse_graph(text);
    PartitionQuery query;
    query.forward_outputs = 1;
    query.tangents = {1};
    query.readable_in_backward = {false, true};
    EXPECT_THROW(partition(joint, query), NotSupported);
}

TEST(Recompute, ComputesCheapValuesAgainBehindTheFullestMoment) {
    const Graph graph = parse_graph(R"(graph(%x: f32[8, 8], %w: f32[8, 8]) {
  %a = tanh(%x)
  %b = matmul(%a, %w)
  %c = sin(%b)
  %d = matmul(%c, %w)
  %e = mul(%d, %d)
  %f = matmul(%e, %w)
  %g = mul(%f, %a)
  %h = mul(%g, %c)
  return %h
}
)");
    PassContext context;
    EXPECT_EQ(to_string(recompute(graph, context)), to_string(graph));
    context.memory_budget = 1;
    const Graph again = recompute(graph, context);
    verify(again);
    std::vector<std::string> copies;
    for (const Node& n : again.nodes())
        if (n.attrs.has("again")) copies.emplace_back(name(n.prim));
    EXPECT_EQ(copies, std::vector<std::string>{"tanh"});
    std::vector<Tensor> inputs;
    for (int i = 0; i < 2; ++i) {
        Tensor t(DType::F32, {8, 8});
        for (std::int64_t k = 0; k < 64; ++k) t.set(k, {0.01 * static_cast<double>(k - 30), 0, 0});
        inputs.push_back(t);
    }
    auto number = [](Expr) { return std::int64_t{0}; };
    const Tensor want = evaluate(graph, inputs, number)[0];
    const Tensor got = evaluate(again, inputs, number)[0];
    for (std::int64_t k = 0; k < 64; ++k) ASSERT_EQ(got.get(k).re, want.get(k).re);
}

TEST(MaxFlow, FindsTheNarrowPlace) {
    MaxFlow flow(4);
    flow.add_edge(0, 1, 5);
    flow.add_edge(0, 2, 5);
    flow.add_edge(1, 2, 1);
    flow.add_edge(1, 3, 2);
    flow.add_edge(2, 3, 9);
    EXPECT_EQ(flow.run(0, 3), 8);
    EXPECT_TRUE(flow.source_side(1));
    EXPECT_FALSE(flow.source_side(2));
}

}  // namespace
}  // namespace ingot
