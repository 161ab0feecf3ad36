// Operators without a lowering: recorded as calls, typed by the operator's own meta function.
//
// The meta function runs on meta tensors with the promises' sizes and strides. Symbolic ones stay
// symbolic where it follows them or where that can be found out (extern_symbols.h); else it is
// asked with numbers, and the sizes are specialised. Operators whose result depends on data, or
// that return views or numbers, cannot be recorded this way.
#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "trace/extern_symbols.h"
#include "trace/lower/conv.h"
#include "trace/mode.h"
#include "trace/recorder_state.h"
#include "trace/tensors.h"

namespace ingot::trace {

namespace {

at::Tensor as_meta(const at::Tensor& t, bool symbolic) {
    const auto options = t.options().device(c10::kMeta);
    return symbolic ? at::empty_strided_symint(t.sym_sizes(), t.sym_strides(), options)
                    : at::empty_strided(t.sizes(), t.strides(), options);
}

bool holds_symbols(const c10::IValue& value) {
    return value.isSymInt() ||
           (value.isList() && std::ranges::any_of(value.toListRef(), &c10::IValue::isSymInt));
}

/// Symbolic numbers fixed as they are.
c10::IValue with_numbers(const c10::IValue& value) {
    if (!holds_symbols(value)) return value;
    const auto fixed = [](const c10::IValue& v) {
        return v.isInt() ? v.toInt() : concrete(v.toSymInt());
    };
    if (value.isSymInt()) return fixed(value);
    std::vector<std::int64_t> numbers;
    for (const c10::IValue& e : value.toListRef()) numbers.push_back(fixed(e));
    return numbers;
}

/// The call being recorded: its operands in order and the stand-ins for the meta function.
struct Builder {
    ExternCallee callee;
    bool symbolic = false;  // the stand-ins' sizes may be
    std::vector<at::Tensor> operands{}, stand_ins{};
    std::vector<c10::IValue> meta{};

    Builder(const c10::OperatorHandle& op, bool symbolic)
        : callee{op, {}, {}, {}, {}, {}, {}}, symbolic(symbolic) {}

    c10::IValue operand(const at::Tensor& t, int argument, int element, bool written) {
        if (written) callee.written.push_back(static_cast<int>(operands.size()));
        callee.slots.push_back({argument, element, static_cast<int>(operands.size())});
        callee.operand_strides.push_back(symbolic ? to_sizes(t.sym_strides())
                                                  : to_sizes(t.strides()));
        operands.push_back(t);
        stand_ins.push_back(as_meta(t, symbolic));
        return stand_ins.back();
    }
    static bool is_constant(const at::Tensor& t) {
        return !t.defined() || (t.unsafeGetTensorImpl()->is_wrapped_number() && !is_promise(t));
    }

    void add(const c10::IValue& v, int i, bool written) {
        if (v.isTensor()) {
            const at::Tensor& t = v.toTensor();
            if (is_constant(t)) {
                callee.arguments.push_back(v);
                meta.push_back(v);
                return;
            }
            callee.arguments.emplace_back();
            meta.push_back(operand(t, i, -1, written));
        } else if (v.isTensorList() || v.isOptionalTensorList()) {
            c10::List<std::optional<at::Tensor>> hollow, some;
            std::vector<at::Tensor> plain;
            int element = 0;
            for (const c10::IValue& e : v.toListRef()) {
                hollow.push_back(std::nullopt);
                if (e.isNone() || !e.toTensor().defined()) {
                    some.push_back(std::nullopt);
                } else {
                    at::Tensor m = operand(e.toTensor(), i, element, written).toTensor();
                    some.push_back(m);
                    plain.push_back(m);
                }
                ++element;
            }
            if (v.isTensorList()) {
                callee.arguments.emplace_back(std::vector<at::Tensor>(v.toListRef().size()));
                meta.emplace_back(plain);
            } else {
                callee.arguments.emplace_back(hollow);
                meta.emplace_back(some);
            }
        } else {
            if (v.isGenerator()) throw NotSupported("an explicit generator");
            callee.arguments.push_back(symbolic ? v : with_numbers(v));
            meta.push_back(v.isDevice() ? c10::IValue(c10::Device(c10::kMeta))
                                        : callee.arguments.back());
        }
    }

    void add_all(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
        for (std::size_t i = 0; i < arguments.size(); ++i) {
            const auto* alias = op.schema().arguments()[i].alias_info();
            add(arguments[i], static_cast<int>(i), alias != nullptr && alias->isWrite());
        }
    }
};

bool has_symbolic_sizes(const c10::IValue& value) {
    bool found = holds_symbols(value);
    for_each_tensor(value, [&](const at::Tensor& t) {
        found = found || (t.defined() && t.unsafeGetTensorImpl()->has_symbolic_sizes_strides());
    });
    return found;
}

/// Gives `target` the contents and the sizes (`after`) that the call left it with.
void store_written(RecorderState& state, const at::Tensor& target, const at::Tensor& after,
                   ValueId value) {
    Promise& p = state.promise(target);
    if (same(target.sym_sizes(), after.sym_sizes())) return state.write(p, value);
    if (p.cell()->input >= 0) throw NotSupported("an input is resized");
    at::Tensor fresh = state.fresh(value, after.sym_strides().vec(), target.device());
    Promise& q = state.promise(fresh);
    p.become(q.cell(), q.view(), q.sym_sizes().vec(), q.sym_strides().vec(), 0);
}

bool all_constant(const ExternCallee& callee) {
    return std::ranges::all_of(callee.result_strides, [](const Sizes& strides) {
        return std::ranges::all_of(strides, [](Expr e) { return e.is_constant(); });
    });
}

/// For each result its dims from the one with the longest stride.
Ints orders_in_memory(const std::vector<Sizes>& strides) {
    Ints orders;
    for (const Sizes& s : strides) {
        Ints dims(s.size());
        std::iota(dims.begin(), dims.end(), 0);
        std::ranges::stable_sort(dims, std::greater<>{}, [&](std::int64_t d) {
            return s[static_cast<std::size_t>(d)].constant();
        });
        orders.insert(orders.end(), dims.begin(), dims.end());
    }
    return orders;
}

bool is_random(const c10::OperatorHandle& op) {
    return op.hasTag(at::Tag::nondeterministic_seeded);
}

// Operators whose meta function promises other strides or sizes than their kernel gives. Nothing in
// a schema tells; tests/trace/opinfo.py compares every operator's and finds those that belong here.
bool misplaced_by_meta(const c10::OperatorHandle& op) {
    static constexpr std::string_view kOperators[] = {
        "aten::max_unpool2d",
        "aten::max_unpool3d",
        "aten::_linalg_svd",
        "aten::linalg_eig",
        "aten::nonzero_static",
        "aten::_embedding_bag",
        "aten::_embedding_bag_forward_only",
        "aten::_efficient_attention_forward",
    };
    const std::string& name = op.schema().name();
    return std::find(std::begin(kOperators), std::end(kOperators), name) != std::end(kOperators);
}

/// Whether it makes a quantised tensor. Such a tensor has a quantizer beside its memory, which a
/// promise has not, and meta functions describe it as if it had none.
bool quantises(const c10::FunctionSchema& schema, std::span<const c10::IValue> arguments) {
    if (schema.name().starts_with("quantized::") || schema.name().starts_with("aten::quantize_"))
        return true;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        c10::TypePtr type = schema.arguments()[i].real_type();
        if (const auto optional = type->cast<c10::OptionalType>())
            type = optional->getElementType();
        if (type->kind() == c10::TypeKind::ScalarTypeType && arguments[i].isInt() &&
            c10::isQIntType(static_cast<c10::ScalarType>(arguments[i].toInt())))
            return true;
    }
    return false;
}

/// Gradients of pooling lie as the image does whose gradient they are, those of upsampling have the
/// sizes that the call is given; their meta functions, which say the same, insist on numbers. The
/// gradient, or nothing for any other operator.
at::Tensor gradient_of_sampling(const c10::FunctionSchema& schema, const torch::jit::Stack& meta) {
    enum class Lies : std::uint8_t { AsTheImage, AsTheResult, InRows };
    static constexpr std::pair<std::string_view, Lies> kOperators[] = {
        {"aten::max_pool2d_with_indices_backward", Lies::AsTheImage},
        {"aten::avg_pool2d_backward", Lies::AsTheImage},
        {"aten::_adaptive_avg_pool2d_backward", Lies::AsTheImage},
        {"aten::upsample_bilinear2d_backward", Lies::AsTheResult},
        {"aten::_upsample_bilinear2d_aa_backward", Lies::AsTheResult},
        {"aten::upsample_trilinear3d_backward", Lies::AsTheResult},
        {"aten::upsample_linear1d_backward", Lies::InRows},
        {"aten::upsample_bicubic2d_backward", Lies::InRows},
        {"aten::_upsample_bicubic2d_aa_backward", Lies::InRows},
    };
    const auto* found = std::ranges::find(kOperators, std::string_view(schema.name()),
                                          &std::pair<std::string_view, Lies>::first);
    if (found == std::end(kOperators)) return {};
    const auto argument = [&](const char* name) -> const c10::IValue& {
        return meta[static_cast<std::size_t>(*schema.argumentIndexWithName(name))];
    };
    if (found->second == Lies::AsTheImage) {
        const at::Tensor& image = argument("self").toTensor();
        return at::empty_like(image, image.suggest_memory_format());
    }
    const at::Tensor& result = meta[0].toTensor();
    return at::empty_symint(argument("input_size").toSymIntVector(), result.options(),
                            found->second == Lies::AsTheResult ? result.suggest_memory_format()
                                                               : c10::MemoryFormat::Contiguous);
}

/// Fused attention that is not asked for its weights gives none, which its meta function does not
/// know.
bool leaves_out_weights(const c10::FunctionSchema& schema,
                        const std::vector<c10::IValue>& arguments) {
    if (schema.name() != "aten::_native_multi_head_attention") return false;
    const std::optional<int> asked = schema.argumentIndexWithName("need_weights");
    return asked && !arguments[static_cast<std::size_t>(*asked)].toBool();
}

/// The results of one run over zeros.
torch::jit::Stack run_over_zeros(const c10::OperatorHandle& op,
                                 std::span<const c10::IValue> arguments) {
    torch::jit::Stack zeros;
    for (const c10::IValue& v : arguments) {
        if (v.isTensor() && v.toTensor().defined())
            zeros.emplace_back(at::empty_strided(v.toTensor().sizes(), v.toTensor().strides(),
                                                 v.toTensor().options())
                                   .zero_());
        else
            zeros.push_back(with_numbers(v));
    }
    op.callBoxed(zeros);
    return zeros;
}

/// oneDNN's recurrent layer keeps what only its own backward can read, in memory of a size that
/// only its kernel knows: `results` gets what one run over zeros tells of it. A layer that does not
/// train keeps nothing.
void add_workspace(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments,
                   torch::jit::Stack& results) {
    const c10::FunctionSchema& schema = op.schema();
    if (schema.name() != "aten::mkldnn_rnn_layer") return;
    const std::optional<int> trains = schema.argumentIndexWithName("train");
    if (!trains || !arguments[static_cast<std::size_t>(*trains)].toBool()) {
        results.back() = at::Tensor();
        return;
    }
    const at::Tensor kept = run_over_zeros(op, arguments).back().toTensor();
    results.back() =
        kept.defined() ? as_meta(kept, false) : at::Tensor();  // none without gradients
}

/// Fourier transforms lie as the library's last pass leaves them, which their meta functions know
/// for rows alone.
bool lies_as_it_comes(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
    if (!op.schema().name().starts_with("aten::_fft_") || !arguments[0].toTensor().is_cpu())
        return false;
    const at::Tensor& x = arguments[0].toTensor();
    const std::vector<std::int64_t> dims = arguments[1].toIntVector();
    return dims.size() != 1 || dims[0] != x.dim() - 1 || !x.is_contiguous();
}

/// Whether a run over zeros costs little and may tell more of where results lie than the meta
/// function, which is another program than the kernel: operands with a layout of their own, or with
/// sizes of one, whose strides say nothing.
bool is_asked_to_run(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
    constexpr std::int64_t kMost = 1 << 16;
    if (!op.schema().name().starts_with("aten::") || op.schema().is_mutable() || is_random(op))
        return false;
    std::int64_t elements = 0;
    bool plain = true, here = true;
    for (const c10::IValue& v : arguments) {
        if (v.isTensorList() || v.isOptionalTensorList() || v.isGenerator()) return false;
        if (!v.isTensor() || !v.toTensor().defined()) continue;
        const at::Tensor& t = v.toTensor();
        here = here && t.is_cpu() && !t.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
        if (!here) return false;
        elements += t.numel();
        plain = plain && t.is_contiguous() &&
                std::ranges::none_of(t.sizes(), [](std::int64_t n) { return n == 1; });
    }
    return !plain && elements > 0 && elements <= kMost;
}

/// Puts what a run over zeros tells in the place of what the meta function said. Where zeros are no
/// operands for the kernel, the latter stands.
void ask_the_kernel(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments,
                    torch::jit::Stack& meta) {
    torch::jit::Stack results;
    try {
        results = run_over_zeros(op, arguments);
    } catch (const std::exception&) {
        return;
    }
    for (std::size_t i = 0; i < results.size() && i < meta.size(); ++i)
        if (results[i].isTensor() && results[i].toTensor().defined() && meta[i].isTensor() &&
            meta[i].toTensor().defined() && results[i].toTensor().layout() == c10::kStrided)
            meta[i] = as_meta(results[i].toTensor(), false);
}

}  // namespace

void RecorderState::record_extern(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
    const c10::FunctionSchema& schema = op.schema();
    std::size_t count = schema.arguments().size();
    for (const c10::Argument& r : schema.returns())
        if (r.alias_info() != nullptr && !r.alias_info()->isWrite())
            throw NotSupported("a view operator without a lowering");
    if (op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape))
        throw NotSupported("the result depends on the data");
    if (misplaced_by_meta(op)) throw NotSupported("the strides of the result are not known");
    if (quantises(schema, std::span(stack).last(count)))
        throw NotSupported("a quantised tensor is made");
    // Their results are there when `wait_tensor` says so of that very memory, which a program has
    // moved by then.
    if (schema.name().starts_with("_c10d_") || schema.name().starts_with("c10d::") ||
        schema.name().starts_with("symm_mem::"))
        throw NotSupported("a collective, which goes on beside the program");
    if (schema.name().starts_with("aten::as_strided"))
        throw NotSupported("it looks beyond its operand into the storage");
    std::vector<c10::IValue> arguments(stack.end() - static_cast<std::ptrdiff_t>(count),
                                       stack.end());
    for (c10::IValue& v : arguments) {  // floats are numbers to a call
        if (v.isSymFloat()) v = v.toSymFloat().guard_float(__FILE__, __LINE__);
        if (!v.isTensor() || !v.toTensor().defined()) continue;
        if (const auto number = symbols->fix_float(v.toTensor()))
            v = at::native::wrapped_scalar_tensor(*number);
    }
    std::string call_origin = origin;

    c10::impl::ExcludeDispatchKeyGuard unrecorded(
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
    c10::Device device = c10::kCPU;
    for (const c10::IValue& v : arguments)
        if (v.isDevice()) device = resolve(v.toDevice());
    torch::jit::Stack meta;
    const auto described = [&](bool symbolic) {
        Builder b(op, symbolic);
        b.add_all(op, arguments);
        meta = std::move(b.meta);
        WithoutMode no_mode(*this);
        if (at::Tensor t = symbolic ? gradient_of_sampling(schema, meta) : at::Tensor();
            t.defined()) {
            meta = {std::move(t)};
            return b;
        }
        if (schema.name() == "aten::convolution") {
            meta = {result_of_convolution(meta)};
            return b;
        }
        if (lies_as_it_comes(op, arguments)) {
            if (symbolic) throw NotSupported("strides that are found by a run");
            meta = {as_meta(run_over_zeros(op, arguments).at(0).toTensor(), false)};
            return b;
        }
        op.callBoxed(meta);
        add_workspace(op, arguments, meta);
        if (!symbolic && is_asked_to_run(op, arguments)) ask_the_kernel(op, arguments, meta);
        return b;
    };
    Builder b = [&] {
        const bool symbolic = std::ranges::any_of(arguments, has_symbolic_sizes);
        if (!symbolic || this->device.value_or(c10::kCPU).is_cuda()) return described(false);
        try {
            Builder found(op, true);
            found.add_all(op, arguments);
            if (!found.callee.written.empty() || gradient_of_sampling(schema, found.meta).defined())
                return described(true);
            auto results = symbolic_results(graph.shared_pool(), *symbols, found.meta,
                                            [&](torch::jit::Stack& stack) {
                                                const WithoutMode no_mode(*this);
                                                op.callBoxed(stack);
                                            });
            if (results) {
                meta = std::move(*results);
                add_workspace(op, arguments, meta);
                return found;
            }
        } catch (const std::exception&) {
            // A meta function that insists on numbers.
        }
        return described(false);
    }();
    if (!b.operands.empty()) device = b.operands[0].device();

    std::vector<Type> types;
    auto add_result = [&](const at::Tensor& m, bool is_operand, int index) {
        if (m.layout() != c10::kStrided) throw NotSupported("a result that is not strided");
        types.push_back({to_dtype(m.scalar_type()), to_sizes(m.sym_sizes()), Device{}});
        b.callee.results.push_back({is_operand, index});
        b.callee.result_strides.push_back(to_sizes(m.sym_strides()));
    };
    for (int w : b.callee.written) add_result(b.stand_ins[static_cast<std::size_t>(w)], true, w);
    std::vector<at::Tensor> returned;  // flattened meta results
    for (std::size_t i = 0; i < schema.returns().size(); ++i) {
        if (schema.returns()[i].alias_info() != nullptr) continue;
        if (meta[i].isTensor()) {
            returned.push_back(meta[i].toTensor());
        } else if (meta[i].isTensorList()) {
            for (const at::Tensor& t : meta[i].toTensorVector()) returned.push_back(t);
        } else if (i == 0 || !meta[i].isInt()) {
            throw NotSupported("a call that returns no tensor");
        }
    }
    if (leaves_out_weights(schema, arguments)) returned[1] = at::Tensor();
    for (std::size_t i = 0; i < returned.size(); ++i)
        if (returned[i].defined()) add_result(returned[i], false, static_cast<int>(i));

    bool random = is_random(op);
    uses_random = uses_random || random;
    if (random) random_run.reset();
    std::vector<ValueId> operands;
    for (const at::Tensor& t : b.operands) operands.push_back(read(t));
    // A call without a result is made for the error that it may raise.
    Attrs attrs{{"callee", call_origin},
                {"index", static_cast<std::int64_t>(externs.size())},
                {"pure", !random && !types.empty()}};
    if (reads_channels_last(schema.name()) && types[0].rank() == 4)
        attrs.set("orders", Ints{0, 2, 3, 1});
    else if (device.is_cuda() || (is_attention_gradient(schema.name()) && all_constant(b.callee)))
        attrs.set("orders", orders_in_memory(b.callee.result_strides));
    std::vector<int> written = b.callee.written;
    externs.push_back(std::move(b.callee));
    NodeId node = graph.add_with_types(Prim::ExternCall, std::move(operands), std::move(attrs),
                                       std::move(types), call_origin);
    std::vector<ValueId> values = graph.node(node).results;

    std::size_t next = 0;
    for (int w : written) {
        auto k = static_cast<std::size_t>(w);
        store_written(*this, b.operands[k], b.stand_ins[k], values[next++]);
    }
    std::size_t flat = 0;
    auto wrap = [&]() {
        const at::Tensor& m = returned[flat++];
        return m.defined() ? fresh(values[next++], m.sym_strides().vec(), device) : at::Tensor();
    };
    torch::jit::drop(stack, count);
    std::size_t target = 0;
    for (std::size_t i = 0; i < schema.returns().size(); ++i) {
        if (schema.returns()[i].alias_info() != nullptr) {
            stack.emplace_back(b.operands[static_cast<std::size_t>(written[target++])]);
        } else if (meta[i].isTensor()) {
            stack.emplace_back(wrap());
        } else if (meta[i].isInt()) {
            stack.emplace_back(meta[i]);  // beside tensors, a number that sizes decide
        } else {
            std::vector<at::Tensor> list;
            for (std::size_t k = meta[i].toTensorVector().size(); k > 0; --k)
                list.push_back(wrap());
            stack.emplace_back(std::move(list));
        }
    }
    log_call(op, std::move(arguments), stack);
}

}  // namespace ingot::trace
