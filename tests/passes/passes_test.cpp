// Passes on text: every case of tests/passes/*.ir is a list of passes, a graph and what they make
// of it. Each result is verified, and evaluated against the graph it came from. INGOT_BLESS=1
// writes the expected parts anew.
//
//     # passes: simplify, eliminate_dead
//     <graph>
//     ---
//     <expected>
//     === (before the next case)
#include "passes/passes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "ir/parse.h"
#include "ir/print.h"
#include "ir/random_graph.h"
#include "ir/reference.h"
#include "ir/verify.h"

namespace ingot {
namespace {

PassContext packing_context() {
    PassContext c;
    c.panel_width = [](const PackQuery& q) { return q.dtype == DType::F32 ? 8 : 0; };
    c.vendor_epilogues = true;
    c.vendor_widens = true;
    return c;
}

// Small numbers: integers that fit every type, floats of both signs.
Tensor random_tensor(const Type& type, const Ints& sizes, std::mt19937& random) {
    Tensor t(type.dtype, sizes);
    for (std::int64_t i = 0; i < t.numel(); ++i) {
        auto r = static_cast<double>(random() % 2001);
        t.set(i, {r / 500 - 2, r / 700 - 1, static_cast<std::int64_t>(r) % 3});
    }
    return t;
}

std::vector<Tensor> random_inputs(const Graph& g, std::mt19937& random) {
    std::vector<Tensor> inputs;
    for (const Input& in : g.inputs()) {
        Ints sizes;
        for (Expr e : g.type(in.value).sizes)
            sizes.push_back(evaluate(e, [](Expr) { return std::int64_t{5}; }));
        inputs.push_back(random_tensor(g.type(in.value), sizes, random));
    }
    return inputs;
}

// Equal numbers; NaN equals NaN. `tolerance` is relative to the larger of 1 and the number.
void expect_close(const Tensor& a, const Tensor& b, double tolerance) {
    ASSERT_EQ(a.dtype, b.dtype);
    ASSERT_EQ(a.sizes, b.sizes);
    for (std::int64_t i = 0; i < a.numel(); ++i) {
        Num x = a.get(i), y = b.get(i);
        ASSERT_EQ(x.i, y.i);
        if (std::isnan(x.re) && std::isnan(y.re)) continue;
        if (x.re == y.re) {
            ASSERT_TRUE(tolerance > 0 || std::signbit(x.re) == std::signbit(y.re));
            continue;
        }
        ASSERT_NEAR(x.re, y.re, tolerance * std::max(1.0, std::fabs(x.re))) << "element " << i;
    }
}

void expect_same_meaning(const Graph& before, const Graph& after, double tolerance) {
    std::mt19937 random(11);
    auto inputs = random_inputs(before, random);
    auto five = [](Expr) { return std::int64_t{5}; };
    auto want = evaluate(before, inputs, five), got = evaluate(after, inputs, five);
    ASSERT_EQ(want.size(), got.size());
    for (std::size_t i = 0; i < want.size(); ++i) expect_close(want[i], got[i], tolerance);
}

std::vector<Pass> named_passes(const std::string& list) {
    std::vector<Pass> passes;
    std::istringstream words(list);
    for (std::string name; std::getline(words, name, ',');) {
        name.erase(0, name.find_first_not_of(' '));
        name.erase(name.find_last_not_of(" \r") + 1);
        auto all = pipeline();
        if (name == "pipeline") {
            passes.insert(passes.end(), all.begin(), all.end());
            continue;
        }
        auto it =
            std::find_if(all.begin(), all.end(), [&](const Pass& p) { return p.name == name; });
        if (it == all.end()) throw UserError("no pass named '" + name + "'");
        passes.push_back(*it);
    }
    return passes;
}

std::vector<std::string> split(const std::string& text, const std::string& mark) {
    std::vector<std::string> parts;
    std::size_t at = 0;
    for (std::size_t next; (next = text.find(mark, at)) != std::string::npos;
         at = next + mark.size())
        parts.push_back(text.substr(at, next - at));
    parts.push_back(text.substr(at));
    return parts;
}

std::string read_file(const std::filesystem::path& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Passes, TextCases) {
    const bool bless = std::getenv("INGOT_BLESS") != nullptr;
    std::size_t cases = 0;
    for (const auto& entry : std::filesystem::directory_iterator(INGOT_TEST_DATA "/passes")) {
        if (entry.path().extension() != ".ir") continue;
        std::string whole;
        for (const std::string& text : split(read_file(entry.path()), "===\n")) {
            auto parts = split(text, "---\n");
            std::size_t line = parts[0].find("# passes:");
            ASSERT_NE(line, std::string::npos) << entry.path();
            std::string list = parts[0].substr(line + 9, parts[0].find('\n', line) - line - 9);
            SCOPED_TRACE(entry.path().filename().string() + ", case " + std::to_string(++cases) +
                         ":" + list);
            Graph before = parse_graph(parts[0]);
            verify(before);
            PipelineOptions options;
            options.verify = true;
            Graph after = run_passes(parse_graph(parts[0], before.shared_pool()), packing_context(),
                                     options, named_passes(list));
            std::string got = to_string(after);
            EXPECT_EQ(got, bless ? got : parts.size() > 1 ? parts[1] : "");
            // Folding into weights rounds differently, and so does one rounding in place of two;
            // all else is exact.
            bool folds = list.find("fold_frozen") != std::string::npos ||
                         list.find("fuse_linear") != std::string::npos ||
                         list.find("pipeline") != std::string::npos;
            // Sums that are not rounded to 16 bits; or later, where steps between reach 32.
            const bool widens = list.find("widen_products") != std::string::npos;
            const bool narrow = list.find("fuse_convolution") != std::string::npos;
            expect_same_meaning(before, after, narrow ? 0.25 : widens ? 4e-3 : folds ? 1e-5 : 0);
            whole += (whole.empty() ? "" : "===\n") + parts[0] + "---\n" + got;
        }
        if (bless) std::ofstream(entry.path()) << whole;
    }
    EXPECT_GT(cases, 0u);
}

TEST(Passes, RandomGraphsKeepTheirMeaning) {
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        Graph g = testing::RandomGraph(seed, seed % 2 == 0).make(25);
        PipelineOptions options;
        options.verify = true;
        Graph after = run_passes(g, packing_context(), options);
        expect_same_meaning(g, after, 0);
        if (HasFatalFailure()) {
            ADD_FAILURE() << to_string(g) << "became\n" << to_string(after);
            return;
        }
    }
}

TEST(Passes, DumpOnlyWhatChanged) {
    Graph g = parse_graph("graph(%0: f32[4]) {\n  %1 = neg(%0)\n  %2 = neg(%1)\n  return %2\n}");
    std::vector<std::string> changed;
    std::vector<PassReport> reports;
    PipelineOptions options;
    options.dump = [&](std::string_view pass, const std::string&) { changed.emplace_back(pass); };
    options.reports = &reports;
    run_passes(g, {}, options);
    EXPECT_EQ(changed, (std::vector<std::string>{"simplify", "eliminate_dead"}));
    EXPECT_EQ(reports.size(), pipeline().size());
    EXPECT_EQ(reports[0].nodes_before, 2u);
}

}  // namespace
}  // namespace ingot
