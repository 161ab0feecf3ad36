// The tracer against eager: outputs, strides, aliasing, writes, in graphs run by the oracle.
#include <gtest/gtest.h>

#include "replay_graph.h"

namespace ingot::trace {
namespace {

using Tensors = std::vector<at::Tensor>;
using Function = std::function<Tensors(const Tensors&)>;

struct Outcome {
    Recording recording;
    Tensors outputs, inputs;  // inputs: after the run
};

Outcome record_and_run(const Function& f, const Tensors& inputs) {
    Recorder recorder;
    Tensors promises, outputs;
    for (std::size_t i = 0; i < inputs.size(); ++i)
        promises.push_back(recorder.add_input(inputs[i], false, "x" + std::to_string(i)));
    {
        at::NoGradGuard no_grad;
        Recorder::Scope scope(recorder);
        outputs = f(promises);
    }
    Recording recording = recorder.finish(outputs);
    Tensors copies;
    for (const at::Tensor& t : inputs) copies.push_back(t.clone());
    Tensors results = replay_graph(recording, copies);
    return {std::move(recording), std::move(results), std::move(copies)};
}

/// Runs `f` both ways; outputs, their strides and the inputs afterwards must agree.
Outcome compare(const Function& f, const Tensors& inputs) {
    Outcome ours = record_and_run(f, inputs);
    Tensors eager_inputs;
    for (const at::Tensor& t : inputs) eager_inputs.push_back(t.clone());
    Tensors eager;
    {
        at::NoGradGuard no_grad;
        eager = f(eager_inputs);
    }
    EXPECT_EQ(ours.outputs.size(), eager.size());
    for (std::size_t i = 0; i < eager.size(); ++i) {
        EXPECT_EQ(ours.outputs[i].scalar_type(), eager[i].scalar_type());
        EXPECT_EQ(ours.outputs[i].sizes(), eager[i].sizes());
        EXPECT_EQ(ours.outputs[i].strides(), eager[i].strides());
        EXPECT_TRUE(at::allclose(ours.outputs[i], eager[i], 1e-4, 1e-5)) << "output " << i;
    }
    for (std::size_t i = 0; i < inputs.size(); ++i)
        EXPECT_TRUE(at::allclose(ours.inputs[i], eager_inputs[i], 1e-4, 1e-5)) << "input " << i;
    return ours;
}

TEST(Trace, PromotesAndBroadcasts) {
    compare(
        [](const Tensors& x) {
            return Tensors{x[0] * 2 + x[1], x[1] / 3, x[0].to(at::kBFloat16) * 0.1,
                           at::pow(x[0], 2)};
        },
        {at::rand({3, 1, 4}), at::arange(8).reshape({2, 4})});
}

TEST(Trace, KeepsThePermutedLayoutOfOperands) {
    compare(
        [](const Tensors& x) {
            at::Tensor t = x[0].permute({0, 2, 3, 1});
            return Tensors{at::sin(t), t + x[1], at::relu(t.slice(1, 0, 2))};
        },
        {at::rand({2, 3, 4, 5}), at::rand({4, 5, 3})});
}

TEST(Trace, WritesThroughViews) {
    Outcome o = compare(
        [](const Tensors& x) {
            at::Tensor y = x[0].clone();
            y.select(0, 1).add_(1);
            y.t().slice(0, 0, 2).mul_(3);
            y.diagonal().fill_(7);
            at::Tensor z = y.view({-1});
            z.slice(0, 0, 4).zero_();
            return Tensors{y, z + 1};
        },
        {at::rand({4, 4})});
    EXPECT_TRUE(o.recording.externs.empty());
}

TEST(Trace, WritesInputs) {
    Outcome o = compare(
        [](const Tensors& x) {
            x[0].add_(x[1]);
            x[0].select(1, 0).sub_(1);
            return Tensors{x[0], x[0].t(), x[1]};
        },
        {at::rand({3, 3}), at::rand({3})});
    using Kind = OutputRecipe::Kind;
    EXPECT_EQ(o.recording.outputs[0].kind, Kind::Input);
    EXPECT_EQ(o.recording.outputs[1].kind, Kind::ViewOfInput);
    EXPECT_EQ(o.recording.outputs[2].kind, Kind::Input);
}

TEST(Trace, OutputsThatShareStorageAreViewsOfOneOutput) {
    Outcome o = compare(
        [](const Tensors& x) {
            Tensors parts = at::chunk(x[0] + 1, 2, 1);
            parts.push_back(parts[0]);
            return parts;
        },
        {at::rand({2, 6})});
    using Kind = OutputRecipe::Kind;
    EXPECT_EQ(o.recording.outputs[0].kind, Kind::ViewOfGraph);
    EXPECT_EQ(o.recording.outputs[1].index, o.recording.outputs[0].index);
    EXPECT_EQ(o.recording.outputs[2].kind, Kind::Same);
    EXPECT_TRUE(o.outputs[0].is_alias_of(o.outputs[1]));
}

TEST(Trace, AnEncoderLayerBecomesPrimsOnly) {
    Outcome o = compare(
        [](const Tensors& x) {
            auto heads = [](const at::Tensor& t) { return t.view({2, 5, 4, 4}).transpose(1, 2); };
            at::Tensor q = heads(at::linear(x[0], x[1], x[2]));
            at::Tensor k = heads(at::linear(x[0], x[1]));
            at::Tensor a = at::scaled_dot_product_attention(q, k, q);
            at::Tensor y = a.transpose(1, 2).reshape({2, 5, 16});
            at::Tensor z = at::layer_norm(y + x[0], {16}, x[2], x[2]);
            return Tensors{at::gelu(z), at::softmax(z, -1)};
        },
        {at::randn({2, 5, 16}), at::randn({16, 16}), at::randn({16})});
    EXPECT_TRUE(o.recording.externs.empty());
}

TEST(Trace, AConvolutionKeepsChannelsLast) {
    for (auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
        Outcome o = compare(
            [](const Tensors& x) {
                at::Tensor y = at::conv2d(x[0], x[1], x[2], 1, 1);
                y = at::batch_norm(y, x[2], x[2], x[2], x[3], false, 0.1, 1e-5, false);
                return Tensors{at::max_pool2d(at::relu_(y), 3, 2, 1),
                               at::adaptive_avg_pool2d(y, {1, 1})};
            },
            {at::randn({2, 3, 8, 8}).contiguous(format), at::randn({4, 3, 3, 3}), at::rand({4}),
             at::rand({4}) + 0.5});
        EXPECT_TRUE(o.recording.externs.empty());
    }
}

TEST(Trace, AnOperatorWithoutALoweringIsACall) {
    Outcome o = compare([](const Tensors& x) { return Tensors{at::renorm(x[0], 2, 0, 1.0) + 1}; },
                        {at::eye(3) * 2});
    EXPECT_EQ(o.recording.externs.size(), 1u);
}

TEST(Trace, DataDependenceIsNotSupported) {
    Recorder recorder;
    at::Tensor x = recorder.add_input(at::rand({3}), false, "x");
    Recorder::Scope scope(recorder);
    EXPECT_THROW(x.sum().item(), NotSupported);
    EXPECT_TRUE(recorder.failure().has_value());
}

TEST(Trace, ALazyConjugateOfAnInputIsAViewThatSaysSo) {
    Recorder recorder;
    at::Tensor x = recorder.add_input(at::rand({3}, at::kComplexFloat), false, "x");
    Tensors outputs;
    {
        at::NoGradGuard no_grad;
        Recorder::Scope scope(recorder);
        outputs = {x.conj()};
    }
    const Recording recording = recorder.finish(outputs);
    ASSERT_EQ(recording.outputs.size(), 1u);
    EXPECT_EQ(recording.outputs[0].kind, OutputRecipe::Kind::ViewOfInput);
    EXPECT_TRUE(recording.outputs[0].marks.conj);
    EXPECT_FALSE(recording.outputs[0].marks.neg);
}

TEST(Trace, LayoutsOfSoftmaxAndCopies) {
    compare(
        [](const Tensors& x) {
            return Tensors{at::softmax(x[0], 1), at::cumsum(x[0], 1), at::stack({x[0], x[0]}),
                           at::masked_fill(x[0], x[0] > 0.5, 2), at::roll(x[0], 1, 1)};
        },
        {at::rand({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast)});
}

TEST(Trace, AutogradSeesOrdinaryTensors) {
    Recorder recorder;
    at::Tensor real = at::rand({3, 3}).requires_grad_();
    at::Tensor x = recorder.add_input(real.detach(), false, "x").requires_grad_();
    at::Tensor grad;
    {
        Recorder::Scope scope(recorder);
        at::Tensor y = at::tanh(at::matmul(x, x)).sum();
        y.backward();
        grad = x.grad();
    }
    ASSERT_TRUE(recorder.owns(grad));
    Recording r = recorder.finish(Tensors{grad});
    Tensors ours = replay_graph(r, Tensors{real.detach()});
    at::tanh(at::matmul(real, real)).sum().backward();
    EXPECT_TRUE(at::allclose(ours[0], real.grad(), 1e-4, 1e-5));
}

}  // namespace
}  // namespace ingot::trace
