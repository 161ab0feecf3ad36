// Programs over hand-written kernels: arena, outputs, views, frozen values, threads, errors.
#include "runtime/program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>

namespace ingot::runtime {
namespace {

/// Two real threads, so that sanitizers see what may run at once.
class TwoThreads final : public Threads {
  public:
    int count() const override { return 2; }
    void run(int tasks, void (*body)(void*, int), void* context) const override {
        std::vector<std::thread> threads;
        for (int t = 0; t < tasks; ++t) threads.emplace_back(body, context, t);
        for (auto& t : threads) t.join();
    }
};

void add_one(void* const* b, const std::int64_t*, std::int64_t begin, std::int64_t end, void*,
             std::int64_t*) {
    const float* x = static_cast<const float*>(b[0]);
    float* y = static_cast<float*>(b[1]);
    for (std::int64_t i = begin; i < end; ++i) y[i] = x[i] + 1;
}

void fail_on_negative(void* const* b, const std::int64_t*, std::int64_t begin, std::int64_t end,
                      void*, std::int64_t* error) {
    const float* x = static_cast<const float*>(b[0]);
    for (std::int64_t i = begin; i < end; ++i)
        if (x[i] < 0) *error = kIndexOutOfRange;
    add_one(b, nullptr, begin, end, nullptr, error);
}

Buffer vector_of(int n, BufferPlace place, int index = -1) {
    Buffer b;
    b.type = {DType::F32, {Expr(n)}, {}};
    b.strides = {Expr(1)};
    b.place = place;
    b.index = index;
    b.bytes = Expr(4 * n);
    return b;
}

Kernel unary_kernel(const char* name) {
    Kernel k;
    k.name = name;
    k.buffers = {{DType::F32, Expr(1), BufferScope::Argument, true, false},
                 {DType::F32, Expr(1), BufferScope::Argument, false, true}};
    return k;
}

KernelLaunches launches(KernelFn f, int n, int grain) {
    return {{{f, Launch{"f", Expr(n), Expr(grain), Expr(64)}}}};
}

/// out0 = in0 + 1 + 1 through the arena; out1 = frozen(in1 + 1) + 1.
std::shared_ptr<Program> sample(int n, KernelFn f = add_one) {
    Plan plan;
    plan.pool = std::make_shared<ExprPool>();
    plan.buffers = {vector_of(n, BufferPlace::Input, 0),  vector_of(n, BufferPlace::Arena),
                    vector_of(n, BufferPlace::Output, 0), vector_of(n, BufferPlace::Input, 1),
                    vector_of(n, BufferPlace::Frozen),    vector_of(n, BufferPlace::Output, 1)};
    plan.buffers[1].offset = Expr(64);
    plan.arena_bytes = Expr(64 + 4 * n);
    plan.kernels = {unary_kernel("one")};
    plan.frozen_steps = {KernelStep{0, {3, 4}, {}}};
    plan.steps = {KernelStep{0, {0, 1}, {}}, KernelStep{0, {1, 2}, {}}, KernelStep{0, {4, 5}, {}}};
    plan.input_buffers = {0, 3};
    plan.output_buffers = {2, 5};
    plan.frozen_inputs = {false, true};
    std::vector<ProgramOutput> outputs(2, {plan.buffers[2].type, {Expr(1)}, -1});
    return std::make_shared<Program>(std::move(plan), std::vector{launches(f, n, 8)},
                                     std::move(outputs),
                                     std::vector<std::shared_ptr<const void>>{});
}

struct Caller {
    std::shared_ptr<const Instance> instance;
    std::vector<float> a, b, out0, out1;
    std::uint64_t version = 0;
    int made = 0;
    std::int64_t error = 0;

    Caller(const std::shared_ptr<Program>& program, int n, float x)
        : instance(program->instance(NoExterns())), a(n, x), b(n, 10), out0(n), out1(n) {}
    void call(const Threads& threads) {
        auto context = instance->lease();
        context->set_input(0, a.data());
        context->set_input(1, b.data());
        context->set_output(0, out0.data());
        context->set_output(1, out1.data());
        const InputState state{b.data(), b.data(), version};
        made += instance->freeze(*context, {&state, 1}, threads,
                                 [](std::size_t) { return std::shared_ptr<const void>(); });
        instance->run(*context, threads);
        error = context->error();
    }
};

TEST(Program, RunsStepsThroughTheArena) {
    Caller c(sample(100), 100, 1);
    c.call(SerialThreads());
    EXPECT_EQ(c.out0, std::vector<float>(100, 3));
    EXPECT_EQ(c.out1, std::vector<float>(100, 12));
    EXPECT_EQ(c.error, kNoError);
}

TEST(Program, SplitsWorkOverThreads) {
    Caller c(sample(1001), 1001, 1);
    c.call(TwoThreads());
    EXPECT_EQ(c.out0, std::vector<float>(1001, 3));
}

TEST(Program, FreezesOnceAndAgainWhenTheInputChanges) {
    Caller c(sample(16), 16, 1);
    c.call(SerialThreads());
    c.call(SerialThreads());
    EXPECT_EQ(c.made, 1);
    c.b.assign(16, 20);
    ++c.version;
    c.call(SerialThreads());
    EXPECT_EQ(c.made, 2);
    EXPECT_EQ(c.out1, std::vector<float>(16, 22));
    c.instance->drop_frozen();
    c.call(SerialThreads());
    EXPECT_EQ(c.made, 3);
}

/// What a run asks for and gives back, in order.
class LoggedMemory final : public RunMemory {
  public:
    explicit LoggedMemory(Caller& c) : caller_(c) {}
    void* make_output(std::size_t output) override {
        log += "+" + std::to_string(output);
        return output == 0 ? caller_.out0.data() : caller_.out1.data();
    }
    void release_input(std::size_t input) override { log += "-" + std::to_string(input); }
    std::string log;

  private:
    Caller& caller_;
};

TEST(Program, AsksForOutputsAndGivesInputsBackOnTheWay) {
    Caller c(sample(16), 16, 1);
    c.call(SerialThreads());  // frozen values are there
    std::ranges::fill(c.out0, 0.0F);
    std::ranges::fill(c.out1, 0.0F);
    LoggedMemory memory(c);
    Instance::Lease context = c.instance->lease();
    context->set_input(0, c.a.data());
    c.instance->run(*context, SerialThreads(), &memory);
    EXPECT_EQ(memory.log, "-0+0+1");
    EXPECT_EQ(c.out0, std::vector<float>(16, 3));
    EXPECT_EQ(c.out1, std::vector<float>(16, 12));
}

/// The same with the arena's values one by one.
class LoggedPieces final : public RunMemory {
  public:
    explicit LoggedPieces(Caller& c) : caller_(c) {}
    void* make_output(std::size_t output) override {
        return output == 0 ? caller_.out0.data() : caller_.out1.data();
    }
    void release_input(std::size_t) override {}
    bool lends_pieces() const override { return true; }
    void* make_piece(std::size_t piece, std::size_t bytes) override {
        log += "+" + std::to_string(piece) + ":" + std::to_string(bytes);
        memory_.assign(bytes / sizeof(float), -1.0F);
        return memory_.data();
    }
    void free_piece(std::size_t piece) override {
        log += "-" + std::to_string(piece);
        std::ranges::fill(memory_, -1.0F);
    }
    std::string log;

  private:
    Caller& caller_;
    std::vector<float> memory_;
};

TEST(Program, RunsInPiecesAndInItsArenaAgain) {
    Caller c(sample(16), 16, 1);
    c.call(SerialThreads());
    LoggedPieces memory(c);
    for (int turn = 0; turn < 2; ++turn) {
        std::ranges::fill(c.out0, 0.0F);
        {
            Instance::Lease context = c.instance->lease();
            context->set_input(0, c.a.data());
            c.instance->run(*context, SerialThreads(), &memory);
        }
        EXPECT_EQ(c.out0, std::vector<float>(16, 3));
        std::ranges::fill(c.out0, 0.0F);
        c.call(SerialThreads());  // in the same context
        EXPECT_EQ(c.out0, std::vector<float>(16, 3));
    }
    EXPECT_EQ(memory.log, "+0:64-0+0:64-0");
}

TEST(Program, KnowsWhatItIsLentAtMost) {
    constexpr int kMega = 1 << 20;
    const auto instance = sample(kMega)->instance(NoExterns());
    // Step 1 reads the piece and writes output 0; input 0 went after step 0.
    EXPECT_EQ(instance->most_lent({}, true), 2 * 4 * kMega);
    EXPECT_EQ(instance->most_lent({}, false), 4 * kMega);
    EXPECT_EQ(instance->most_lent({true, false}, true), 2 * 4 * kMega);
    EXPECT_EQ(instance->most_lent({true, true}, false), 3 * 4 * kMega);
    EXPECT_EQ(sample(1024)->instance(NoExterns())->most_lent({true, true}, true), 0);
}

TEST(Program, SharesAnArenaWithOthers) {
    SharedArena arena;
    for (int round = 0; round < 2; ++round)
        for (int n : {100, 1000, 10}) {
            Caller c(sample(n), n, 1);
            for (int again = 0; again < 2; ++again) {
                Instance::Lease context = c.instance->lease(&arena);
                context->set_input(0, c.a.data());
                context->set_input(1, c.b.data());
                context->set_output(0, c.out0.data());
                context->set_output(1, c.out1.data());
                const InputState state{c.b.data(), c.b.data(), 0};
                c.instance->freeze(*context, {&state, 1}, SerialThreads(),
                                   [](std::size_t) { return std::shared_ptr<const void>(); });
                // Another one at the same time works elsewhere.
                Instance::Lease second = c.instance->lease(&arena);
                c.instance->run(*context, SerialThreads());
                EXPECT_EQ(c.out0, std::vector<float>(n, 3));
            }
        }
    // 64 + 4 * 1000 bytes, and behind them a page of a kernel's scratch memory.
    EXPECT_EQ(arena.take(1).bytes(), std::size_t{2 * 4096});
}

TEST(Program, KeepsNoLargeArena) {
    SharedArena arena(4096);
    arena.give_back(Block(4096));
    arena.give_back(Block(8192));
    EXPECT_EQ(arena.take(1).bytes(), std::size_t{4096});
    EXPECT_EQ(arena.take(1).bytes(), std::size_t{1});
}

TEST(Program, TellsErrorsOfKernels) {
    Caller c(sample(16, fail_on_negative), 16, -5);
    c.call(SerialThreads());
    EXPECT_EQ(c.error, kIndexOutOfRange);
    c.a.assign(16, 1);
    c.call(SerialThreads());
    EXPECT_EQ(c.error, kNoError);
}

TEST(Program, ServesManyThreadsAtOnce) {
    auto program = sample(512);
    auto instance = program->instance(NoExterns());
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t)
        threads.emplace_back([&, t] {
            Caller c(program, 512, static_cast<float>(t));
            for (int i = 0; i < 50; ++i) {
                c.call(SerialThreads());
                wrong += c.out0 != std::vector<float>(512, static_cast<float>(t + 2));
                wrong += c.out1 != std::vector<float>(512, 12);
            }
        });
    for (auto& t : threads) t.join();
    EXPECT_EQ(wrong, 0);
}

TEST(Program, CopiesOutputsThatNoKernelCanWriteDirectly) {
    // out0 is a view of the second half of an arena buffer.
    Plan plan;
    plan.pool = std::make_shared<ExprPool>();
    plan.buffers = {vector_of(8, BufferPlace::Input, 0), vector_of(8, BufferPlace::Arena),
                    vector_of(4, BufferPlace::Arena)};
    plan.buffers[2].base = 1;
    plan.buffers[2].offset = Expr(16);
    plan.arena_bytes = Expr(64);
    plan.kernels = {unary_kernel("one")};
    plan.steps = {KernelStep{0, {0, 1}, {}}};
    plan.input_buffers = {0};
    plan.output_buffers = {2};
    plan.frozen_inputs = {false};
    std::vector<ProgramOutput> outputs = {{plan.buffers[2].type, {Expr(1)}, -1}};
    auto program =
        std::make_shared<Program>(std::move(plan), std::vector{launches(add_one, 8, 8)},
                                  std::move(outputs), std::vector<std::shared_ptr<const void>>{});
    auto instance = program->instance(NoExterns());
    ASSERT_EQ(instance->outputs()[0].mode, OutputMode::Copy);
    std::vector<float> x = {0, 1, 2, 3, 4, 5, 6, 7};
    auto context = instance->lease();
    context->set_input(0, x.data());
    instance->run(*context, SerialThreads());
    const float* y = static_cast<const float*>(context->pointer(instance->outputs()[0].buffer));
    EXPECT_EQ(std::vector<float>(y, y + 4), (std::vector<float>{5, 6, 7, 8}));
}

TEST(Program, EvaluatesSymbolicSizes) {
    Plan plan;
    plan.pool = std::make_shared<ExprPool>();
    const Expr n = plan.pool->symbol("n", {2, 1 << 20});
    Buffer in = vector_of(1, BufferPlace::Input, 0);
    in.type.sizes = {n};
    in.bytes = n * Expr(4);
    Buffer out = in;
    out.place = BufferPlace::Output;
    plan.buffers = {in, out};
    plan.kernels = {unary_kernel("one")};
    const Expr m = plan.pool->symbol("m");
    plan.kernels[0].sizes = {m};
    plan.steps = {KernelStep{0, {0, 1}, {n}}};
    plan.input_buffers = {0};
    plan.output_buffers = {1};
    plan.frozen_inputs = {false};
    std::vector<ProgramOutput> outputs = {{out.type, {Expr(1)}, -1}};
    KernelLaunches code{{{add_one, Launch{"f", m, Expr(1), Expr(0)}}}};
    auto program = std::make_shared<Program>(std::move(plan), std::vector{code}, std::move(outputs),
                                             std::vector<std::shared_ptr<const void>>{});
    for (std::int64_t size : {3, 70}) {
        auto instance = program->instance(NoExterns(), {&size, 1});
        std::vector<float> x(size, 1), y(size);
        auto context = instance->lease();
        context->set_input(0, x.data());
        context->set_output(0, y.data());
        instance->run(*context, SerialThreads());
        EXPECT_EQ(y, std::vector<float>(size, 2));
        EXPECT_EQ(instance->outputs()[0].layout.sizes, std::vector<std::int64_t>{size});
    }
}

TEST(BlockPool, RecyclesAndStaysBounded) {
    BlockPool pool(1 << 20);
    auto* a = pool.take(600 << 10);
    void* at = BlockPool::data(a);
    BlockPool::release(a);
    auto* b = pool.take(590 << 10);
    EXPECT_EQ(BlockPool::data(b), at);
    auto* c = pool.take(600 << 10);
    BlockPool::release(b);
    BlockPool::release(c);
    EXPECT_LE(pool.unused_bytes(), std::size_t{1} << 20);
    auto* big = pool.take(4 << 20);
    BlockPool::release(big);
    EXPECT_LE(pool.unused_bytes(), std::size_t{1} << 20);
    pool.trim();
    EXPECT_EQ(pool.unused_bytes(), 0u);
}

TEST(BlockPool, PaysForFreshBlocksWithUnusedOnes) {
    BlockPool pool(std::size_t{256} << 20);
    const std::size_t mega = std::size_t{1} << 20;
    BlockPool::Lent* first = pool.take(40 * mega);
    BlockPool::Lent* between = pool.take(mega);
    BlockPool::Lent* second = pool.take(24 * mega);
    BlockPool::release(first);
    BlockPool::release(second);
    EXPECT_EQ(pool.unused_bytes(), 64 * mega);
    BlockPool::Lent* third = pool.take(50 * mega);  // 26 of it behind the second's place
    EXPECT_LE(pool.unused_bytes(), 16 * mega);
    BlockPool::release(third);
    BlockPool::release(between);
}

TEST(BlockPool, BlocksOutliveThePool) {
    BlockPool::Lent* lent;
    {
        BlockPool pool(1 << 20);
        lent = pool.take(100);
    }
    std::memset(BlockPool::data(lent), 1, 100);
    BlockPool::release(lent);
}

}  // namespace
}  // namespace ingot::runtime
