// One operator in progress, as its lowering sees it: arguments by name, results to give.
//
// Arguments are looked up by the schema's names, so that one lowering serves all overloads of an
// operator, its in-place form and its out= form: it computes the new values, and the driver stores
// them where the schema says.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <span>
#include <string_view>
#include <vector>

#include "trace/lower/emitter.h"
#include "trace/recorder_state.h"

namespace ingot::trace {

class Call {
  public:
    Call(RecorderState& state, const c10::OperatorHandle& op,
         std::span<const c10::IValue> arguments)
        : state_(state),
          op_(op),
          arguments_(arguments),
          emitter_(state.graph, *state.symbols, state.origin) {}

    // ---- arguments ----
    std::string_view overload() const { return op_.schema().operator_name().overload_name; }
    /// The argument of that name, or nullptr when the schema has none.
    const c10::IValue* find(std::string_view name) const;
    /// Whether the argument exists and is not None.
    bool given(std::string_view name) const;
    const c10::IValue& at(std::string_view name) const;
    const c10::IValue& at(std::size_t position) const { return arguments_[position]; }
    std::size_t count() const { return arguments_.size(); }
    at::Tensor tensor(std::string_view name) const;
    /// Undefined when absent, None or an undefined tensor.
    at::Tensor tensor_or_none(std::string_view name) const;
    std::vector<at::Tensor> tensors(std::string_view name) const;
    std::vector<at::Tensor> optional_tensors(std::string_view name) const;
    std::int64_t integer(std::string_view name) const;
    std::int64_t integer_or(std::string_view name, std::int64_t otherwise) const;
    double real(std::string_view name) const;
    double real_or(std::string_view name, double otherwise) const;
    bool flag(std::string_view name, bool otherwise = false) const;
    Ints ints(std::string_view name) const;
    /// The same where sizes may be symbolic.
    c10::SymInt size(std::string_view name) const;
    c10::SymInt size_or(std::string_view name, c10::SymInt otherwise) const;
    SymInts sizes(std::string_view name) const;
    std::string text(std::string_view name) const;
    /// A number; what is symbolic is specialised.
    c10::Scalar number(std::string_view name) const;
    c10::Scalar number_or(std::string_view name, c10::Scalar otherwise) const;
    /// The same for lowerings that take a float which is known only when the program runs.
    c10::Scalar scalar_or(std::string_view name, c10::Scalar otherwise) const;
    std::optional<c10::ScalarType> scalar_type(std::string_view name) const;
    std::optional<c10::Device> device(std::string_view name) const;
    std::optional<c10::MemoryFormat> memory_format(std::string_view name) const;

    // ---- contents ----
    RecorderState& state() const { return state_; }
    Emitter& emit() { return emitter_; }
    ValueId read(const at::Tensor& tensor) const { return state_.read(tensor); }
    Promise& promise(const at::Tensor& tensor) const { return state_.promise(tensor); }
    /// Stores `value`, converted to the tensor's type and broadcast to its sizes, into `tensor`.
    void write(const at::Tensor& tensor, ValueId value);

    // ---- results, in the schema's order ----
    void give(ValueId value, SymInts strides, c10::Device device = c10::kCPU);
    /// A view, an argument itself, or an undefined tensor.
    void give(at::Tensor tensor);
    void give(std::vector<at::Tensor> tensors);
    void give_value(c10::IValue value);

    struct Result {
        c10::IValue value;  // when `fresh` is kNone
        ValueId fresh = kNone;
        SymInts strides;
        c10::Device device = c10::kCPU;
    };
    std::vector<Result>& results() { return results_; }
    /// The out= or in-place target of result `index` when this call has such, else undefined. A
    /// lowering needs it only when the target's type changes what is computed.
    at::Tensor target;

  private:
    RecorderState& state_;
    const c10::OperatorHandle& op_;
    std::span<const c10::IValue> arguments_;
    Emitter emitter_;
    std::vector<Result> results_;
};

using Lowering = void (*)(Call&);
struct LoweringEntry {
    const char* name;  // without namespace "aten::" and overload
    Lowering lowering;
};
/// The lowering of operator `name` ("aten::add"), or nullptr.
Lowering find_lowering(std::string_view name);
/// Whether operator `name`, in place or not, has a lowering that does more than look at, copy or
/// make tensors.
bool computes(std::string_view name);
/// Whether ATen has no kernel of `op` for the type of these arguments, or may have none.
bool eager_refuses(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments);

/// The tables of the families (lower/*.cpp).
std::span<const LoweringEntry> pointwise_lowerings();
std::span<const LoweringEntry> activation_lowerings();
std::span<const LoweringEntry> ternary_lowerings();
std::span<const LoweringEntry> reduce_lowerings();
std::span<const LoweringEntry> softmax_lowerings();
std::span<const LoweringEntry> scan_lowerings();
std::span<const LoweringEntry> view_lowerings();
std::span<const LoweringEntry> movement_lowerings();
std::span<const LoweringEntry> index_lowerings();
std::span<const LoweringEntry> contract_lowerings();
std::span<const LoweringEntry> transformer_lowerings();
std::span<const LoweringEntry> norm_lowerings();
std::span<const LoweringEntry> pool_lowerings();
std::span<const LoweringEntry> creation_lowerings();
std::span<const LoweringEntry> copy_lowerings();
std::span<const LoweringEntry> random_lowerings();
std::span<const LoweringEntry> loss_lowerings();
std::span<const LoweringEntry> backward_lowerings();

/// Counts dim from the front. Throws UserError when it is out of range.
std::int64_t wrap_dim(std::int64_t dim, std::int64_t rank);
Ints wrap_dims(const Ints& dims, std::int64_t rank);

}  // namespace ingot::trace
