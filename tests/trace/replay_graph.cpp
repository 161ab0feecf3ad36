// The tracer's oracle; see replay_graph.h.
#include "replay_graph.h"

#include <cstring>

#include "ir/reference.h"
#include "trace/dtypes.h"

namespace ingot::trace {

namespace {

ingot::Tensor to_dense(const at::Tensor& t) {
    at::Tensor plain = t.contiguous();
    ingot::Tensor out(to_dtype(t.scalar_type()), t.sizes().vec());
    if (!out.data.empty()) std::memcpy(out.data.data(), plain.const_data_ptr(), out.data.size());
    return out;
}
at::Tensor to_aten(const ingot::Tensor& t) {
    at::Tensor out = at::empty(t.sizes, at::TensorOptions().dtype(to_scalar_type(t.dtype)));
    if (!t.data.empty()) std::memcpy(out.mutable_data_ptr(), t.data.data(), t.data.size());
    return out;
}

std::vector<ingot::Tensor> run_extern(const ExternCallee& callee,
                                      const std::vector<ingot::Tensor>& operands) {
    std::vector<at::Tensor> real;
    for (std::size_t i = 0; i < operands.size(); ++i) {
        at::Tensor dense = to_aten(operands[i]);
        at::Tensor laid =
            at::empty_strided(dense.sizes(), to_ints(callee.operand_strides[i]), dense.options());
        real.push_back(laid.copy_(dense));
    }
    torch::jit::Stack stack;
    for (std::size_t a = 0; a < callee.arguments.size(); ++a) {
        const c10::IValue& v = callee.arguments[a];
        std::vector<TensorSlot> here;
        for (const TensorSlot& s : callee.slots)
            if (s.argument == static_cast<int>(a)) here.push_back(s);
        if (here.empty()) {
            stack.push_back(v);
        } else if (here[0].element < 0) {
            stack.emplace_back(real[static_cast<std::size_t>(here[0].operand)]);
        } else {
            c10::List<std::optional<at::Tensor>> list;
            std::vector<at::Tensor> all;
            for (std::size_t i = 0; i < v.toListRef().size(); ++i) list.push_back(std::nullopt);
            for (const TensorSlot& s : here) {
                list.set(static_cast<std::size_t>(s.element),
                         real[static_cast<std::size_t>(s.operand)]);
                all.push_back(real[static_cast<std::size_t>(s.operand)]);
            }
            bool optional =
                callee.op.schema().arguments()[a].type()->str().find('?') != std::string::npos;
            if (optional)
                stack.emplace_back(list);
            else
                stack.emplace_back(all);
        }
    }
    callee.op.callBoxed(stack);
    std::vector<at::Tensor> returned;
    for (std::size_t i = 0; i < callee.op.schema().returns().size(); ++i) {
        if (callee.op.schema().returns()[i].alias_info() != nullptr) continue;
        if (stack[i].isTensor())
            returned.push_back(stack[i].toTensor());
        else
            for (const at::Tensor& t : stack[i].toTensorVector()) returned.push_back(t);
    }
    std::vector<ingot::Tensor> out;
    for (const ExternCallee::Result& r : callee.results)
        out.push_back(to_dense(r.operand ? real[static_cast<std::size_t>(r.index)]
                                         : returned[static_cast<std::size_t>(r.index)]));
    return out;
}

}  // namespace

std::vector<at::Tensor> replay_graph(const Recording& recording,
                                     std::span<const at::Tensor> inputs) {
    const Graph& g = recording.graph;
    std::vector<ingot::Tensor> values(g.values().size());
    std::vector<at::Tensor> real;  // by graph input
    std::size_t given = 0;
    for (std::size_t i = 0; i < g.inputs().size(); ++i) {
        const at::Tensor& captured = recording.inputs[i].captured;
        real.push_back(captured.defined() ? captured : inputs[given++]);
        values[g.inputs()[i].value] = to_dense(real[i]);
    }
    for (const Node& n : g.nodes()) {
        std::vector<ingot::Tensor> operands;
        for (ValueId v : n.operands) operands.push_back(values[v]);
        std::vector<Type> types;
        for (ValueId v : n.results) types.push_back(g.type(v));
        std::vector<ingot::Tensor> results =
            n.prim == Prim::ExternCall
                ? run_extern(
                      recording
                          .externs[static_cast<std::size_t>(n.attrs.get<std::int64_t>("index"))],
                      operands)
                : evaluate(n.prim, operands, n.attrs, types);
        for (std::size_t i = 0; i < results.size(); ++i)
            values[n.results[i]] = std::move(results[i]);
    }
    std::vector<at::Tensor> outputs;
    for (const Output& o : g.outputs()) {
        at::Tensor dense = to_aten(values[o.value]);
        at::Tensor laid = at::empty_strided(dense.sizes(), to_ints(o.strides), dense.options());
        outputs.push_back(laid.copy_(dense));
    }
    for (std::size_t i = 0; i < g.outputs().size(); ++i)
        if (std::int32_t w = g.outputs()[i].writes_input; w >= 0)
            real[static_cast<std::size_t>(w)].copy_(outputs[i]);
    std::vector<at::Tensor> results;
    for (const OutputRecipe& r : recording.outputs) {
        using Kind = OutputRecipe::Kind;
        auto index = static_cast<std::size_t>(r.index);
        auto view = [&](const at::Tensor& base) {
            return base.as_strided(to_ints(r.sizes), to_ints(r.strides),
                                   base.storage_offset() + r.offset.constant());
        };
        switch (r.kind) {
            case Kind::Graph:
                results.push_back(outputs[index]);
                break;
            case Kind::Input:
                results.push_back(real[index]);
                break;
            case Kind::ViewOfInput:
                results.push_back(view(real[index]));
                break;
            case Kind::ViewOfGraph:
                results.push_back(view(outputs[index]));
                break;
            case Kind::Same:
                results.push_back(results[index]);
                break;
            case Kind::None:
                results.emplace_back();
                break;
        }
    }
    return results;
}

}  // namespace ingot::trace
