// Access to an operator's arguments and the look-up of lowerings; see call.h.
#include "trace/lower/call.h"

#include <ATen/core/TensorBody.h>

#include <unordered_map>
#include <unordered_set>

namespace ingot::trace {

const c10::IValue* Call::find(std::string_view name) const {
    const auto& formal = op_.schema().arguments();
    for (std::size_t i = 0; i < formal.size() && i < arguments_.size(); ++i)
        if (formal[i].name() == name) return &arguments_[i];
    return nullptr;
}
bool Call::given(std::string_view name) const {
    const c10::IValue* v = find(name);
    return v != nullptr && !v->isNone();
}
const c10::IValue& Call::at(std::string_view name) const {
    const c10::IValue* v = find(name);
    if (v == nullptr || v->isNone())
        throw InternalError("a lowering asks for the missing argument '" + std::string(name) + "'");
    return *v;
}
at::Tensor Call::tensor(std::string_view name) const { return at(name).toTensor(); }
at::Tensor Call::tensor_or_none(std::string_view name) const {
    return given(name) ? at(name).toTensor() : at::Tensor();
}
std::vector<at::Tensor> Call::tensors(std::string_view name) const {
    return at(name).toTensorVector();
}
std::vector<at::Tensor> Call::optional_tensors(std::string_view name) const {
    std::vector<at::Tensor> out;
    for (const c10::IValue& v : at(name).toListRef())
        out.push_back(v.isNone() ? at::Tensor() : v.toTensor());
    return out;
}
std::int64_t Call::integer(std::string_view name) const {
    const c10::IValue& v = at(name);
    if (v.isSymInt()) return concrete(v.toSymInt());
    if (v.isBool()) return v.toBool();
    return v.toInt();
}
std::int64_t Call::integer_or(std::string_view name, std::int64_t otherwise) const {
    return given(name) ? integer(name) : otherwise;
}
double Call::real(std::string_view name) const { return at(name).toScalar().toDouble(); }
double Call::real_or(std::string_view name, double otherwise) const {
    return given(name) ? real(name) : otherwise;
}
bool Call::flag(std::string_view name, bool otherwise) const {
    return given(name) ? at(name).toBool() : otherwise;
}
Ints Call::ints(std::string_view name) const {
    const c10::IValue& v = at(name);
    if (v.isInt()) return {v.toInt()};
    if (v.isSymInt()) return {concrete(v.toSymInt())};
    Ints out;
    for (const c10::IValue& e : v.toListRef())
        out.push_back(e.isSymInt() ? concrete(e.toSymInt()) : e.toInt());
    return out;
}
c10::SymInt Call::size(std::string_view name) const {
    const c10::IValue& v = at(name);
    return v.isBool() ? c10::SymInt(v.toBool()) : v.toSymInt();
}
c10::SymInt Call::size_or(std::string_view name, c10::SymInt otherwise) const {
    return given(name) ? size(name) : otherwise;
}
SymInts Call::sizes(std::string_view name) const {
    const c10::IValue& v = at(name);
    if (v.isInt() || v.isSymInt()) return {v.toSymInt()};
    SymInts out;
    for (const c10::IValue& e : v.toListRef()) out.push_back(e.toSymInt());
    return out;
}
std::string Call::text(std::string_view name) const { return at(name).toStringRef(); }
namespace {
c10::Scalar plain(const c10::Scalar& s) {
    if (!s.isSymbolic()) return s;
    if (s.isBoolean()) return s.toSymBool().guard_bool(__FILE__, __LINE__);
    return s.isIntegral(false) ? c10::Scalar(s.toLong()) : c10::Scalar(s.toDouble());
}
}  // namespace
c10::Scalar Call::number(std::string_view name) const { return plain(at(name).toScalar()); }
c10::Scalar Call::scalar_or(std::string_view name, c10::Scalar otherwise) const {
    if (!given(name)) return otherwise;
    const c10::Scalar s = at(name).toScalar();
    const bool open =
        s.isSymbolic() &&
        (s.isIntegral(false) || (s.isFloatingPoint() && contents(s.toSymFloat()).defined()));
    return open ? s : plain(s);
}
c10::Scalar Call::number_or(std::string_view name, c10::Scalar otherwise) const {
    return given(name) ? number(name) : otherwise;
}
std::optional<c10::ScalarType> Call::scalar_type(std::string_view name) const {
    if (!given(name)) return std::nullopt;
    return at(name).toScalarType();
}
std::optional<c10::Device> Call::device(std::string_view name) const {
    if (!given(name)) return std::nullopt;
    return at(name).toDevice();
}
std::optional<c10::MemoryFormat> Call::memory_format(std::string_view name) const {
    if (!given(name)) return std::nullopt;
    return at(name).toMemoryFormat();
}

void Call::write(const at::Tensor& tensor, ValueId value) {
    Promise& p = promise(tensor);
    ValueId typed = emitter_.convert(value, to_dtype(tensor.scalar_type()));
    state_.write(p, emitter_.expand(typed, tensor.sym_sizes().vec()));
}

void Call::give(ValueId value, SymInts strides, c10::Device device) {
    results_.push_back({{}, value, std::move(strides), device});
}
void Call::give(at::Tensor tensor) {
    results_.push_back({std::move(tensor), kNone, {}, c10::kCPU});
}
void Call::give(std::vector<at::Tensor> tensors) {
    results_.push_back({std::move(tensors), kNone, {}, c10::kCPU});
}
void Call::give_value(c10::IValue value) {
    results_.push_back({std::move(value), kNone, {}, c10::kCPU});
}

std::int64_t wrap_dim(std::int64_t dim, std::int64_t rank) {
    std::int64_t n = std::max<std::int64_t>(rank, 1);
    if (dim < -n || dim >= n)
        throw UserError("dimension " + std::to_string(dim) + " is out of range for rank " +
                        std::to_string(rank));
    return dim < 0 ? dim + n : dim;
}
Ints wrap_dims(const Ints& dims, std::int64_t rank) {
    Ints out;
    for (std::int64_t d : dims) out.push_back(wrap_dim(d, rank));
    return out;
}

Lowering find_lowering(std::string_view name) {
    static const auto* const index = [] {
        auto* m = new std::unordered_map<std::string_view, Lowering>();
        for (auto table :
             {pointwise_lowerings(), activation_lowerings(), ternary_lowerings(),
              reduce_lowerings(), softmax_lowerings(), scan_lowerings(), view_lowerings(),
              movement_lowerings(), index_lowerings(), contract_lowerings(),
              transformer_lowerings(), norm_lowerings(), pool_lowerings(), creation_lowerings(),
              copy_lowerings(), random_lowerings(), loss_lowerings(), backward_lowerings()})
            for (const LoweringEntry& e : table) m->emplace(e.name, e.lowering);
        return m;
    }();
    if (!name.starts_with("aten::")) return nullptr;
    auto it = index->find(name.substr(6));
    return it == index->end() ? nullptr : it->second;
}

bool computes(std::string_view name) {
    static const auto* const plain = [] {
        auto* m = new std::unordered_set<std::string_view>{"cat"};
        for (auto table : {view_lowerings(), creation_lowerings(), copy_lowerings()})
            for (const LoweringEntry& e : table) m->insert(e.name);
        return m;
    }();
    if (find_lowering(name) == nullptr && name.ends_with('_')) name.remove_suffix(1);
    return find_lowering(name) != nullptr && !plain->contains(name.substr(6));
}

}  // namespace ingot::trace
