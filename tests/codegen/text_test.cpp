// The C++ text of hand-made nests is compiled with the system's compiler and gives what plain loops
// give.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

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
