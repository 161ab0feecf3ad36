// Running sums and their like, sorting.
#include "trace/lower/promote.h"

namespace ingot::trace {

namespace {

template <Prim prim>
void lower_cum(Call& call) {  // cumsum, cumprod
    at::Tensor self = call.tensor("self");
    Emitter& e = call.emit();
    DType type = to_dtype(self.scalar_type());
    if (is_integral(type)) type = DType::I64;
    if (auto t = call.scalar_type("dtype")) type = to_dtype(*t);
    ValueId v = e.convert(call.read(self), type);
    std::int64_t dim = wrap_dim(call.integer("dim"), self.dim());
    if (self.dim() > 0) v = e.op(prim, {v}, {{"dim", dim}});
    call.give(v, contiguous(self.sym_sizes().vec()), self.device());
}
template <Prim prim>
void lower_cum_index(Call& call) {  // cummax, cummin: through the helper that fills both results
    at::Tensor self = call.tensor("self"), values = call.tensor("values"),
               indices = call.tensor("indices");
    if (self.dim() == 0) throw NotSupported("cummax of a 0-dim tensor");
    std::int64_t dim = wrap_dim(call.integer("dim"), self.dim());
    std::vector<ValueId> both = call.emit().ops(prim, {call.read(self)}, {{"dim", dim}});
    call.write(values, both[0]);
    call.write(indices, both[1]);
}
void lower_logcumsumexp(Call& call) {
    at::Tensor self = call.tensor("self");
    DType type = to_dtype(self.scalar_type());
    if (!is_float(type) || self.dim() == 0) throw NotSupported("logcumsumexp of this operand");
    std::int64_t dim = wrap_dim(call.integer("dim"), self.dim());
    call.give(call.emit().op(Prim::Logcumsumexp, {call.read(self)}, {{"dim", dim}}),
              contiguous(self.sym_sizes().vec()), self.device());
}
void lower_sort(Call& call) {
    at::Tensor self = call.tensor("self");
    // Which of equal elements comes first is eager's secret unless a stable sort is asked for.
    if (self.dim() == 0 || !call.flag("stable")) throw NotSupported("an unstable sort");
    std::int64_t dim = wrap_dim(call.integer_or("dim", -1), self.dim());
    std::vector<ValueId> both =
        call.emit().ops(Prim::Sort, {call.read(self)},
                        {{"dim", dim}, {"descending", call.flag("descending")}, {"stable", true}});
    SymInts strides = preserved_strides(layout_of(self));
    call.give(both[0], strides, self.device());
    call.give(both[1], strides, self.device());
}

}  // namespace

std::span<const LoweringEntry> scan_lowerings() {
    static constexpr LoweringEntry table[] = {
        {"cumsum", lower_cum<Prim::Cumsum>},
        {"cumprod", lower_cum<Prim::Cumprod>},
        {"_cummax_helper", lower_cum_index<Prim::Cummax>},
        {"_cummin_helper", lower_cum_index<Prim::Cummin>},
        {"logcumsumexp", lower_logcumsumexp},
        {"_logcumsumexp", lower_logcumsumexp},
        {"sort", lower_sort},
    };
    return table;
}

}  // namespace ingot::trace
