// The C++ text of hand-made nests is compiled with the system's compiler and gives what plain loops
// give.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "codegen/text/cpp.h"
#include "codegen/text/triton.h"

namespace ingot {
namespace {

using Entry = void (*)(void* const*, const std::int64_t*, std::int64_t*);

// Lives until the process ends: the loader tells libraries apart by inode, which a deleted file's
// successor may get.
struct Folder {
    std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("ingot-text-" + std::to_string(::getpid()));
    int files = 0;
    Folder() { std::filesystem::create_directories(path); }
    ~Folder() { std::filesystem::remove_all(path); }
};

class CompiledText {
  public:
    explicit CompiledText(const Kernel& kernel) {
        static Folder folder;
        std::string name = "kernel" + std::to_string(folder.files++);
        auto source = folder.path / (name + ".cpp"), library = folder.path / (name + ".so");
        std::ofstream(source) << to_cpp(kernel, "kernel");
        std::string command =
            "c++ -std=c++20 -O1 -fopenmp -ffp-contract=off -shared -fPIC -Wno-unused-function -o " +
            library.string() + " " + source.string();
        status_ = std::system(command.c_str());
        // NODELETE: unloading the OpenMP runtime under its own threads would crash them.
        if (status_ == 0)
            handle_ = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    }
    Entry entry() const {
        return handle_ ? reinterpret_cast<Entry>(::dlsym(handle_, "kernel")) : nullptr;
    }

  private:
    int status_ = 0;
    void* handle_ = nullptr;
};

Inst load(int buffer, Expr offset) {
    Inst i;
    i.kind = InstKind::Load;
    i.buffer = buffer;
    i.offset = offset;
    return i;
}
Inst prim(Prim p, std::vector<InstId> operands) {
    Inst i;
    i.prim = p;
    i.operands = std::move(operands);
    return i;
}
Inst reduced(int phase) {
    Inst i;
    i.kind = InstKind::Reduced;
    i.phase = phase;
    i.reduction = 0;
    return i;
}

// Softmax over the rows of [rows, s0] in three phases.
Kernel softmax(ExprPool& pool) {
    Expr n = pool.symbol("s0", {1, 1 << 20});
    Expr row = pool.index("i0", 5);
    Kernel k;
    k.name = "softmax";
    k.sizes = {n};
    k.buffers = {{DType::F32, n * Expr(5), BufferScope::Argument, true, false},
                 {DType::F32, n * Expr(5), BufferScope::Argument, false, true}};
    Nest nest;
    nest.loops = {{row, 5, LoopKind::Serial}};
    for (int p = 0; p < 3; ++p) {
        Expr column = pool.index("j" + std::to_string(p), n);
        Expr at = row * n + column;
        Phase phase;
        phase.loops = {{column, n, LoopKind::Vector}};
        phase.insts = {load(0, at)};
        if (p > 0) {
            phase.insts.push_back(reduced(0));
            phase.insts.push_back(prim(Prim::Sub, {0, 1}));
            phase.insts.push_back(prim(Prim::Exp, {2}));
        }
        if (p == 0) phase.reductions = {{ReduceOp::Max, DType::F32, 0, kNone}};
        if (p == 1) phase.reductions = {{ReduceOp::Sum, DType::F32, 3, kNone}};
        if (p == 2) {
            phase.insts.push_back(reduced(1));
            phase.insts.push_back(prim(Prim::Div, {3, 4}));
            phase.stores = {{1, at, 5, kNone, StoreMode::Write}};
        }
        nest.phases.push_back(std::move(phase));
    }
    k.nests = {std::move(nest)};
    return k;
}

TEST(CppText, SoftmaxComputesWhatPlainLoopsDo) {
    ExprPool pool;
    CompiledText text(softmax(pool));
    ASSERT_NE(text.entry(), nullptr);
    const std::int64_t n = 37;
    std::vector<float> x(5 * n), y(5 * n, -1);
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (float& v : x) v = 10 * normal(random);
    void* buffers[] = {x.data(), y.data()};
    std::int64_t error = 0;
    text.entry()(buffers, &n, &error);
    EXPECT_EQ(error, 0);
    for (int r = 0; r < 5; ++r) {
        double largest = -INFINITY, sum = 0;
        for (int c = 0; c < n; ++c) largest = std::max<double>(largest, x[r * n + c]);
        for (int c = 0; c < n; ++c) sum += std::exp(x[r * n + c] - largest);
        for (int c = 0; c < n; ++c)
            ASSERT_NEAR(y[r * n + c], std::exp(x[r * n + c] - largest) / sum, 1e-6)
                << r << "," << c;
    }
}

TEST(CppText, OutOfRangeIndexSetsTheErrorFlag) {
    ExprPool pool;
    Expr i = pool.index("i0", 4), at = pool.index("at", 10);
    Kernel k;
    k.name = "embedding";
    k.buffers = {{DType::I64, 4, BufferScope::Argument, true, false},
                 {DType::BF16, 10, BufferScope::Argument, true, false},
                 {DType::BF16, 4, BufferScope::Argument, false, true}};
    Inst which = load(0, i), bind, value = load(1, at);
    which.dtype = DType::I64;
    bind.kind = InstKind::Bind;
    bind.operands = {0};
    bind.offset = at;
    bind.extent = 10;
    bind.imm = 1;
    value.dtype = DType::BF16;
    Phase phase;
    phase.insts = {which, bind, value};
    phase.stores = {{2, i, 2, kNone, StoreMode::Write}};
    Nest nest;
    nest.loops = {{i, 4, LoopKind::Serial}};
    nest.phases = {phase};
    k.nests = {nest};
    CompiledText text(k);
    ASSERT_NE(text.entry(), nullptr);
    std::vector<std::int64_t> index = {3, -1, 0, 9};
    std::vector<std::uint16_t> table = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19}, out(4, 0);
    void* buffers[] = {index.data(), table.data(), out.data()};
    std::int64_t error = 0;
    text.entry()(buffers, nullptr, &error);
    EXPECT_EQ(error, 0);
    EXPECT_EQ(out, (std::vector<std::uint16_t>{13, 19, 10, 19}));
    index[2] = 10;
    text.entry()(buffers, nullptr, &error);
    EXPECT_NE(error, 0);

    k.nests[0].phases[0].insts[1].imm = kBindFromStart;
    CompiledText from_start(k);
    ASSERT_NE(from_start.entry(), nullptr);
    index[2] = error = 0;
    from_start.entry()(buffers, nullptr, &error);
    EXPECT_NE(error, 0);
    index[1] = error = 0;
    from_start.entry()(buffers, nullptr, &error);
    EXPECT_EQ(error, 0);
}

// The columns of [6, 4] times the greatest of their row, added up over runs of three rows.
Kernel sums_over_runs(ExprPool& pool) {
    Expr first = pool.index("i0", 2), next = pool.index("i1", 3), column = pool.index("j", 4);
    Expr at = (first * 3 + next) * 4 + column;
    Kernel k;
    k.name = "sums";
    k.buffers = {{DType::F32, 24, BufferScope::Argument, true, false},
                 {DType::F32, 8, BufferScope::Argument, false, true}};
    Phase greatest, sums;
    greatest.loops = sums.loops = {{column, 4, LoopKind::Serial}};
    greatest.insts = {load(0, at)};
    greatest.reductions = {{ReduceOp::Max, DType::F32, 0, kNone}};
    sums.insts = {load(0, at), reduced(0), prim(Prim::Mul, {0, 1})};
    sums.stores = {{1, first * 4 + column, 2, kNone, StoreMode::Sum}};
    Nest nest;
    nest.loops = {{first, 2, LoopKind::Serial}, {next, 3, LoopKind::Run}};
    nest.phases = {greatest, sums};
    k.nests = {nest};
    return k;
}

TEST(CppText, ARunAddsUp) {
    ExprPool pool;
    CompiledText text(sums_over_runs(pool));
    ASSERT_NE(text.entry(), nullptr);
    std::vector<float> x(24), sums(8, -1), expected(8, 0);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7 % 11);
    for (std::size_t row = 0; row < 6; ++row) {
        const auto begin = x.begin() + static_cast<std::ptrdiff_t>(row * 4);
        for (std::size_t c = 0; c < 4; ++c)
            expected[row / 3 * 4 + c] +=
                begin[static_cast<std::ptrdiff_t>(c)] * *std::max_element(begin, begin + 4);
    }
    void* buffers[] = {x.data(), sums.data()};
    std::int64_t error = 0;
    text.entry()(buffers, nullptr, &error);
    EXPECT_EQ(error, 0);
    EXPECT_EQ(sums, expected);
}

TEST(TritonText, ARunIsALoopAroundItsPhases) {
    ExprPool pool;
    Kernel k = sums_over_runs(pool);
    const auto lines_with = [](const std::string& text, const std::string& what) {
        int count = 0;
        for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
            ++count;
        return count;
    };
    const TritonText short_rows = to_triton(k, "sums");
    EXPECT_TRUE(short_rows.functions[0].points.is(2));
    EXPECT_NE(short_rows.source.find("for runflat in range(0, 3):"), std::string::npos);
    // The sum stays in a variable and is written behind the loop.
    EXPECT_NE(short_rows.source.find("\n        sum0 += "), std::string::npos);
    EXPECT_NE(short_rows.source.find("\n    tl.store(b1 + "), std::string::npos);
    EXPECT_EQ(lines_with(short_rows.source, "tl.debug_barrier()"), 0);
    // Rows of two lengths do not: what is there is read again.
    k.nests[0].phases[0].loops[0].extent = 2;
    const TritonText in_memory = to_triton(k, "sums");
    EXPECT_EQ(lines_with(in_memory.source, "& (runflat > 0), other=0)"), 1);
    EXPECT_EQ(lines_with(in_memory.source, "tl.debug_barrier()"), 2);
}

TEST(TritonText, ModuleIsPython) {
    ExprPool pool;
    std::string text = to_triton(softmax(pool), "softmax").source;
    auto file = std::filesystem::temp_directory_path() /
                ("ingot-triton-" + std::to_string(::getpid()) + ".py");
    std::ofstream(file) << text;
    EXPECT_EQ(std::system(("python3 -m py_compile " + file.string()).c_str()), 0) << text;
    std::filesystem::remove(file);
    EXPECT_NE(text.find("def softmax_0("), std::string::npos);
}

}  // namespace
}  // namespace ingot
