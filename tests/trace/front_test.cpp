// The C++ entrance: programs compiled and called without Python, other sizes, changed weights,
// errors.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "ingot/ingot.h"
#include "trace/extern_host.h"

namespace ingot {
namespace {

Options in_memory() {
    Options options;
    options.cache = false;
    return options;
}

struct Layer {
    at::Tensor weight = at::randn({16, 8}), bias = at::randn({16});
    at::Tensor forward(const at::Tensor& x) const { return at::gelu(at::linear(x, weight, bias)); }
};

TEST(Front, CompilesAFunction) {
    const auto f = [](const Tensors& x) { return Tensors{x[0].sin() + x[1], x[0] * 2}; };
    const Tensors inputs = {at::randn({4, 5}), at::randn({5})};
    const Compiled compiled = compile(f, inputs, in_memory());
    EXPECT_EQ(compiled.program_count(), 1) << compiled.fallback_reason();
    const Tensors got = compiled(inputs), expected = f(inputs);
    ASSERT_EQ(got.size(), 2u);
    EXPECT_TRUE(at::allclose(got[0], expected[0]));
    EXPECT_TRUE(at::equal(got[1], expected[1]));
}

TEST(Front, CompilesAgainForOtherSizesAndTypes) {
    const auto f = [](const Tensors& x) { return Tensors{x[0].exp().sum(-1)}; };
    const Compiled compiled = compile(f, {at::randn({3, 4})}, in_memory());
    for (const at::Tensor& x :
         {at::randn({3, 4}), at::randn({7, 2}), at::randn({3, 4}, at::kDouble)})
        EXPECT_TRUE(at::allclose(compiled({x})[0], f({x})[0]));
    EXPECT_EQ(compiled.program_count(), 3) << compiled.fallback_reason();
}

TEST(Front, SeesChangedWeights) {
    const auto layer = std::make_shared<Layer>();
    const at::Tensor x = at::randn({3, 8});
    const Compiled compiled = compile(layer, {x}, in_memory());
    EXPECT_EQ(compiled.program_count(), 1) << compiled.fallback_reason();
    for (int i = 0; i < 6; ++i) {
        EXPECT_TRUE(at::allclose(compiled({x})[0], layer->forward(x), 1e-4, 1e-5));
        layer->weight.add_(1);
    }
    EXPECT_EQ(compiled.program_count(), 1);
}

TEST(Front, RunsTheFunctionWhereItCannotCompile) {
    const auto f = [](const Tensors& x) {
        return Tensors{x[0].sum().item<float>() > 0 ? x[0] : -x[0]};
    };
    const at::Tensor x = at::ones({3});
    const Compiled compiled = compile(f, {x}, in_memory());
    EXPECT_EQ(compiled.program_count(), 0);
    EXPECT_FALSE(compiled.fallback_reason().empty());
    EXPECT_TRUE(at::equal(compiled({x})[0], x));
    EXPECT_TRUE(at::equal(compiled({-x})[0], x));
}

TEST(Front, RaisesWhatEagerRaises) {
    const auto f = [](const Tensors& x) { return Tensors{at::embedding(x[0], x[1])}; };
    const at::Tensor table = at::randn({4, 3});
    const Compiled compiled = compile(f, {table, at::tensor({0, 3})}, in_memory());
    EXPECT_TRUE(
        at::equal(compiled({table, at::tensor({1, 2})})[0], f({table, at::tensor({1, 2})})[0]));
    EXPECT_THROW(compiled({table, at::tensor({0, 9})}), c10::IndexError);
    EXPECT_TRUE(
        at::equal(compiled({table, at::tensor({3, 2})})[0], f({table, at::tensor({3, 2})})[0]));
}

TEST(Front, LeavesGradientsToTheFunction) {
    const auto f = [](const Tensors& x) { return Tensors{(x[0] * x[0]).sum()}; };
    const at::Tensor x = at::randn({3}).requires_grad_();
    const Compiled compiled = compile(f, {x.detach()}, in_memory());
    compiled({x})[0].backward();
    EXPECT_TRUE(at::allclose(x.grad(), 2 * x.detach()));
}

TEST(TorchThreads, RunsTasksOnSeveralThreads) {
    at::set_num_threads(2);
    // Each task waits until the other has begun: on one thread the first would give up.
    struct Shared {
        std::atomic<int> begun = 0;
        std::atomic<int> met = 0;
    } shared;
    const ingot::trace::TorchThreads threads;
    ASSERT_EQ(threads.count(), 2);
    threads.run(
        2,
        [](void* pointer, int) {
            Shared& s = *static_cast<Shared*>(pointer);
            ++s.begun;
            for (int n = 0; n < 1000 && s.begun < 2; ++n)
                std::this_thread::sleep_for(std::chrono::milliseconds(10));
            s.met += s.begun == 2;
        },
        &shared);
    EXPECT_EQ(shared.met, 2);
}

TEST(Front, ServesManyThreads) {
    const auto f = [](const Tensors& x) { return Tensors{at::softmax(x[0], -1)}; };
    const Compiled compiled = compile(f, {at::randn({8, 32})}, in_memory());
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t)
        threads.emplace_back([&] {
            for (int i = 0; i < 30; ++i) {
                const at::Tensor x = at::randn({8, 32});
                wrong += !at::allclose(compiled({x})[0], f({x})[0]);
            }
        });
    for (auto& t : threads) t.join();
    EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace ingot
