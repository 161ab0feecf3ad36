// Extern steps over ATen; see extern_host.h.
#include "trace/extern_host.h"

#include <ATen/ATen.h>

#include "trace/dtypes.h"
#include "trace/gpu.h"
#include "trace/output_tensor.h"
#include "trace/replay.h"
#include "trace/tensors.h"
#include "trace/vendor.h"

namespace ingot::trace {
namespace {

using runtime::Layout;

bool same_storage(const at::Tensor& a, const at::Tensor& b) {
    return a.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
           b.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

std::int64_t number(Expr e, const SymbolValues& value) {
    return e.is_constant() ? e.constant() : evaluate(e, value);
}

Attrs with_numbers(const Attrs& symbolic, const SymbolValues& value) {
    Attrs attrs = symbolic;
    for (const Attr& a : symbolic.list()) {
        if (const auto* e = std::get_if<Expr>(&a.value)) attrs.set(a.key, Expr(number(*e, value)));
        if (const auto* list = std::get_if<Sizes>(&a.value)) {
            Sizes numbers;
            for (Expr e : *list) numbers.emplace_back(number(e, value));
            attrs.set(a.key, std::move(numbers));
        }
    }
    return attrs;
}

/// What all extern calls do: tensors over the buffers, results into their places.
class TorchCall : public runtime::ExternCall {
  public:
    TorchCall(std::span<const Layout> inputs, std::span<const Layout> outputs, c10::Device device)
        : inputs_(inputs.begin(), inputs.end()),
          outputs_(outputs.begin(), outputs.end()),
          device_(device) {}

    void run(std::span<void* const> inputs, std::span<void*> outputs,
             std::span<std::shared_ptr<void>> owners) const override {
        std::vector<at::Tensor> in, out(outputs.size());
        in.reserve(inputs.size());
        for (std::size_t i = 0; i < inputs.size(); ++i)
            in.push_back(tensor_over(inputs[i], inputs_[i], device_));
        for (std::size_t i = 0; i < outputs.size(); ++i)
            if (outputs[i] != nullptr) out[i] = tensor_over(outputs[i], outputs_[i], device_);
        std::vector<at::Tensor> results = call(in, out);
        check(results.size() == outputs.size(), "an extern call gave another number of results");
        for (std::size_t i = 0; i < outputs.size(); ++i)
            place(std::move(results[i]), in, out[i], i, outputs[i], owners[i]);
    }
    void make_outputs(std::span<void*> outputs,
                      std::span<std::shared_ptr<void>> owners) const override {
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            if (outputs[i] != nullptr) continue;
            at::Tensor made = make_output(outputs_[i], device_);
            outputs[i] = made.mutable_data_ptr();
            owners[i] = std::make_shared<at::Tensor>(std::move(made));
        }
    }

  protected:
    virtual std::vector<at::Tensor> call(std::span<const at::Tensor> in,
                                         std::span<const at::Tensor> out) const = 0;

  private:
    void place(at::Tensor result, const std::vector<at::Tensor>& in, at::Tensor& planned,
               std::size_t i, void*& pointer, std::shared_ptr<void>& owner) const {
        const Layout& layout = outputs_[i];
        check(result.defined(), "an extern call gave no tensor");
        if (result.sizes() != c10::IntArrayRef(layout.sizes) ||
            result.scalar_type() != to_scalar_type(layout.dtype))
            throw InternalError("an extern call gave a result of another size or type");
        if (planned.defined()) {
            if (!planned.is_same(result)) planned.copy_(result);
            return;
        }
        // A result that is, or looks into, an operand would dangle: it needs memory of its own.
        if (lies_as_planned(result, layout))
            result = result.as_strided(layout.sizes, layout.strides, result.storage_offset());
        bool own = result.device() == device_ && has_layout(result, layout) && !result.is_conj() &&
                   !result.is_neg();
        for (const at::Tensor& t : in) own = own && !same_storage(t, result);
        if (!own) {
            at::Tensor copy = empty_tensor(layout, device_);
            copy.copy_(result);
            result = std::move(copy);
        }
        pointer = result.mutable_data_ptr();
        owner = std::make_shared<at::Tensor>(std::move(result));
    }

    /// Whether strides differ only where there is but one element.
    static bool lies_as_planned(const at::Tensor& t, const Layout& layout) {
        if (has_layout(t, layout) || t.numel() == 0) return false;
        for (std::int64_t d = 0; d < t.dim(); ++d)
            if (t.size(d) != 1 && t.stride(d) != layout.strides[static_cast<std::size_t>(d)])
                return false;
        return true;
    }

    std::vector<Layout> inputs_, outputs_;
    c10::Device device_;
};

class VendorCall final : public TorchCall {
  public:
    VendorCall(VendorFunction f, bool repeats, std::span<const Layout> inputs,
               std::span<const Layout> outputs, c10::Device device)
        : TorchCall(inputs, outputs, device), function_(std::move(f)), repeats_(repeats) {}
    bool repeats() const override { return repeats_; }

  private:
    std::vector<at::Tensor> call(std::span<const at::Tensor> in,
                                 std::span<const at::Tensor> out) const override {
        return function_(in, out);
    }
    VendorFunction function_;
    bool repeats_;
};

/// A recorded ATen call on other tensors.
class RecordedCall final : public TorchCall {
  public:
    RecordedCall(std::shared_ptr<const std::vector<ExternCallee>> table, std::size_t index,
                 const SymbolValues& value, std::span<const Layout> inputs,
                 std::span<const Layout> outputs, c10::Device device)
        : TorchCall(inputs, outputs, device), table_(std::move(table)), callee_(table_->at(index)) {
        for (const c10::IValue& v : callee_.arguments)
            arguments_.push_back(trace::with_numbers(v, value));
        // Fused attention reads heads wherever they lie; a mask, behind these, processors do not.
        const std::string& name = callee_.op.schema().name();
        if (device.is_cuda() && name.starts_with("aten::_scaled_dot_product_"))
            lie_anywhere_ = callee_.operand_strides.size();
        else if (is_attention_gradient(name))
            lie_anywhere_ = 5;
        channels_last_ = reads_channels_last(callee_.op.schema().name());
        for (const Sizes& strides : callee_.operand_strides) {
            Ints& numbers = operand_strides_.emplace_back();
            for (Expr e : strides) numbers.push_back(number(e, value));
        }
    }
    /// A library's own operators may do anything on the host, and random ones ask it each time.
    bool repeats() const override {
        return callee_.op.schema().name().starts_with("aten::") &&
               !callee_.op.hasTag(at::Tag::nondeterministic_seeded);
    }

  private:
    std::vector<at::Tensor> call(std::span<const at::Tensor> in,
                                 std::span<const at::Tensor>) const override {
        std::vector<at::Tensor> operands(in.begin(), in.end());
        for (std::size_t i = 0; i < operands.size() && i < operand_strides_.size(); ++i)
            if (channels_last_ && operands[i].dim() == 4)
                operands[i] = operands[i].contiguous(at::MemoryFormat::ChannelsLast);
            else if (i >= lie_anywhere_ || !has_wide_rows(operands[i]))
                operands[i] = with_strides(operands[i], operand_strides_[i]);
        // A written operand is a value of the graph: the call gets a copy that it may change.
        for (int w : callee_.written)
            if (same_storage(operands[w], in[w])) operands[w] = clone_as_is(operands[w]);
        torch::jit::Stack stack = arguments(operands);
        if (adds_up_rows(stack))
            stack = {summed_rows(stack)};
        else
            callee_.op.callBoxed(stack);
        std::vector<at::Tensor> returned;
        for (const c10::IValue& v : stack)
            for_each_tensor(v, [&](const at::Tensor& t) { returned.push_back(t); });
        std::vector<at::Tensor> results;
        for (const ExternCallee::Result& r : callee_.results)
            results.push_back(r.operand ? operands.at(r.index) : returned.at(r.index));
        return results;
    }

    // The gradient of an embedding on a GPU: rows added where their indices say, by atomics, take a
    // third of the time that sorting the indices takes. In fp32 only, which rounds little; where
    // results have to be the same in every run, eager's own.
    bool adds_up_rows(const torch::jit::Stack& stack) const {
        return callee_.op.schema().name() == "aten::embedding_dense_backward" &&
               stack[0].toTensor().is_cuda() && stack[0].toTensor().scalar_type() == at::kFloat &&
               !stack[4].toBool() && !at::globalContext().deterministicAlgorithms();
    }
    static at::Tensor summed_rows(const torch::jit::Stack& stack) {
        const at::Tensor &grad = stack[0].toTensor(), &indices = stack[1].toTensor();
        const std::int64_t rows = stack[2].toInt(), padding = stack[3].toInt();
        at::Tensor sums = at::zeros({rows, grad.size(-1)}, grad.options());
        sums.index_add_(0, indices.flatten(), grad.reshape({-1, grad.size(-1)}));
        if (padding >= 0) sums.select(0, padding).zero_();
        return sums;
    }

    /// The operator saw these strides when it was recorded; its result's strides (and, for a few
    /// operators, its meaning) follow from them.
    static at::Tensor with_strides(const at::Tensor& t, const Ints& strides) {
        if (strides.size() != static_cast<std::size_t>(t.dim()) || t.strides() == strides) return t;
        at::Tensor copy = at::empty_strided(t.sizes(), strides, t.options());
        // Overlapping elements (an expanded operand) cannot be written one by one.
        for (std::int64_t s : strides)
            if (s == 0) return t;
        return copy.copy_(t);
    }

    /// Whether rows lie side by side; for a GPU, 16 bytes of each at aligned addresses.
    static bool has_wide_rows(const at::Tensor& t) {
        if (t.dim() != 4 || t.stride(3) != 1) return false;
        if (!t.is_cuda()) return true;
        if (t.itemsize() != 2) return false;
        for (std::int64_t d = 0; d < 3; ++d)
            if (t.stride(d) % 8 != 0) return false;
        return reinterpret_cast<std::uintptr_t>(t.const_data_ptr()) % 16 == 0;
    }

    static at::Tensor clone_as_is(const at::Tensor& t) {
        return at::empty_strided(t.sizes(), t.strides(), t.options()).copy_(t);
    }

    torch::jit::Stack arguments(const std::vector<at::Tensor>& operands) const {
        torch::jit::Stack stack(arguments_);
        for (c10::IValue& v : stack)
            if (v.isList()) v = v.toList().copy();
        for (const TensorSlot& slot : callee_.slots) {
            c10::IValue& v = stack[slot.argument];
            if (slot.element < 0) {
                v = operands.at(slot.operand);
            } else if (v.isTensorList()) {
                auto list = v.toTensorList();
                list.set(slot.element, operands.at(slot.operand));
            } else {
                v.toList().set(slot.element, operands.at(slot.operand));
            }
        }
        return stack;
    }

    std::shared_ptr<const std::vector<ExternCallee>> table_;
    const ExternCallee& callee_;
    std::vector<c10::IValue> arguments_;  // the callee's, without symbols
    std::vector<Ints> operand_strides_;
    std::size_t lie_anywhere_ = 0;  // operands, the first so many, that are read as they lie
    bool channels_last_ = false;
};

}  // namespace

TorchExterns::TorchExterns(std::vector<ExternCallee> table, c10::Device device)
    : table_(std::make_shared<const std::vector<ExternCallee>>(std::move(table))),
      device_(device),
      gpu_(device.is_cuda() ? std::make_shared<TorchGpu>(device) : nullptr) {}

std::unique_ptr<runtime::ExternCall> TorchExterns::prepare(const ExternStep& step,
                                                           std::span<const Layout> inputs,
                                                           std::span<const Layout> outputs) const {
    if (step.index >= 0)
        return std::make_unique<RecordedCall>(table_, static_cast<std::size_t>(step.index), value_,
                                              inputs, outputs, device_);
    if (!step.callee.empty())
        throw NotSupported("an extern call of '" + step.callee + "' that was not recorded");
    return std::make_unique<VendorCall>(
        vendor_function(step.prim, with_numbers(step.attrs, value_), device_),
        kind(step.prim) != PrimKind::Random, inputs, outputs, device_);
}

at::Tensor tensor_over(void* data, const Layout& layout, c10::Device device) {
    auto storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), static_cast<std::size_t>(layout.bytes),
        c10::DataPtr(data, device), nullptr, false);
    at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(std::move(storage)), c10::DispatchKeySet(key_of(device)),
        c10::scalarTypeToTypeMeta(to_scalar_type(layout.dtype)));
    t.unsafeGetTensorImpl()->set_sizes_and_strides(layout.sizes, layout.strides);
    return t;
}

at::Tensor empty_tensor(const Layout& layout, c10::Device device) {
    return at::empty_strided(
        layout.sizes, layout.strides,
        at::TensorOptions().dtype(to_scalar_type(layout.dtype)).device(device));
}

bool has_layout(const at::Tensor& tensor, const Layout& layout) {
    const auto sizes = tensor.sizes(), strides = tensor.strides();
    if (sizes != c10::IntArrayRef(layout.sizes)) return false;
    if (tensor.numel() == 0) return strides == c10::IntArrayRef(layout.strides);
    for (std::size_t d = 0; d < sizes.size(); ++d)
        if (strides[d] != layout.strides[d]) return false;
    return true;
}

}  // namespace ingot::trace
