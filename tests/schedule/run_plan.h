// Carries a plan out plainly: kernels through the interpreter, extern steps through the reference
// evaluator, memory as planned (so overlapping buffers are caught). The oracle's other side.
#pragma once
#include <cstring>
#include <functional>
#include <map>

#include "ir/reference.h"
#include "schedule/interpret.h"
#include "schedule/plan.h"

namespace ingot::testing {

class PlanRunner {
  public:
    PlanRunner(const Plan& plan, SymbolValues symbols, PointOrder order = PointOrder::Forwards)
        : plan_(plan), symbols_(std::move(symbols)) {
        run_kernel = [this, order](std::int32_t kernel, std::span<void* const> buffers,
                                   std::span<const std::int64_t> sizes) {
            return evaluate(plan_.kernels[static_cast<std::size_t>(kernel)], buffers, sizes, order);
        };
    }

    /// Carries out Plan::kernels[kernel]; false when an index was out of range. The interpreter
    /// unless replaced, by compiled code for instance.
    std::function<bool(std::int32_t kernel, std::span<void* const> buffers,
                       std::span<const std::int64_t> sizes)>
        run_kernel;

    /// The outputs, dense. `inputs` are dense too and laid out here as the plan wants them.
    std::vector<Tensor> run(std::vector<Tensor> inputs) {
        arena_.assign(static_cast<std::size_t>(number(plan_.arena_bytes)), 0xee);
        memory_.resize(plan_.buffers.size());
        for (std::size_t b = 0; b < plan_.buffers.size(); ++b) {
            const Buffer& buffer = plan_.buffers[b];
            if (buffer.base >= 0 || buffer.place == BufferPlace::Arena) continue;
            memory_[b].assign(static_cast<std::size_t>(number(buffer.bytes)), 0xdd);
            if (buffer.place == BufferPlace::Constant)
                std::copy(buffer.data->begin(), buffer.data->end(), memory_[b].begin());
        }
        for (std::size_t i = 0; i < inputs.size(); ++i) write(plan_.input_buffers[i], inputs[i]);
        for (const Step& s : plan_.frozen_steps) step(s);
        for (const Step& s : plan_.steps) step(s);
        std::vector<Tensor> outputs;
        for (std::int32_t b : plan_.output_buffers) outputs.push_back(read(b));
        return outputs;
    }

  private:
    std::int64_t number(Expr e) const { return evaluate(e, symbols_); }

    std::uint8_t* at(std::int32_t b) {
        const Buffer& buffer = plan_.buffers[static_cast<std::size_t>(b)];
        if (buffer.base >= 0) return at(buffer.base) + number(buffer.offset);
        if (buffer.place == BufferPlace::Arena) return arena_.data() + number(buffer.offset);
        return memory_[static_cast<std::size_t>(b)].data();
    }

    template <class F>
    void each(std::int32_t b, const F& f) {
        const Buffer& buffer = plan_.buffers[static_cast<std::size_t>(b)];
        Ints sizes, strides;
        for (Expr e : buffer.type.sizes) sizes.push_back(number(e));
        for (Expr e : buffer.strides) strides.push_back(number(e));
        std::int64_t i = 0;
        for_each_index(sizes, [&](const Ints& index) {
            std::int64_t offset = 0;
            for (std::size_t d = 0; d < index.size(); ++d) offset += index[d] * strides[d];
            f(i++, at(b) + offset * bytes(buffer.type.dtype));
        });
    }
    Tensor read(std::int32_t b) {
        const Type& t = plan_.buffers[static_cast<std::size_t>(b)].type;
        Ints sizes;
        for (Expr e : t.sizes) sizes.push_back(number(e));
        Tensor result(t.dtype, sizes);
        auto n = static_cast<std::size_t>(bytes(t.dtype));
        each(b, [&](std::int64_t i, std::uint8_t* p) {
            std::memcpy(result.data.data() + static_cast<std::size_t>(i) * n, p, n);
        });
        return result;
    }
    void write(std::int32_t b, const Tensor& value) {
        auto n = static_cast<std::size_t>(bytes(value.dtype));
        each(b, [&](std::int64_t i, std::uint8_t* p) {
            std::memcpy(p, value.data.data() + static_cast<std::size_t>(i) * n, n);
        });
    }

    void step(const Step& s) {
        if (auto* k = std::get_if<KernelStep>(&s)) {
            std::vector<void*> buffers;
            std::vector<std::int64_t> sizes;
            for (std::int32_t b : k->buffers) buffers.push_back(at(b));
            for (Expr e : k->sizes) sizes.push_back(number(e));
            const Kernel& kernel = plan_.kernels[static_cast<std::size_t>(k->kernel)];
            const std::size_t each = buffers.size() / static_cast<std::size_t>(kernel.instances);
            for (std::size_t i = 0; i < buffers.size(); i += each)
                if (!run_kernel(k->kernel, std::span(buffers).subspan(i, each), sizes))
                    throw Error("an index is out of range");
            return;
        }
        const auto& e = std::get<ExternStep>(s);
        std::vector<Tensor> operands;
        std::vector<Type> types;
        for (std::int32_t b : e.inputs) operands.push_back(read(b));
        for (std::int32_t b : e.outputs)
            types.push_back(plan_.buffers[static_cast<std::size_t>(b)].type);
        std::vector<Tensor> results = evaluate(e.prim, operands, e.attrs, types, symbols_);
        for (std::size_t i = 0; i < results.size(); ++i) write(e.outputs[i], results[i]);
    }

    const Plan& plan_;
    SymbolValues symbols_;
    std::vector<std::uint8_t> arena_;
    std::vector<std::vector<std::uint8_t>> memory_;  // by buffer, but for the arena's
};

}  // namespace ingot::testing
