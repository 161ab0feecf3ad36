// Dropout and random numbers. On GPUs they are part of kernels, with the numbers that eager's own
// kernels would draw from the generator's state: each element's are a function of its place
// (ir/philox.h), so a mask is computed again where that is cheaper than keeping it. On processors,
// where a number follows from all before it, they are steps that fill memory with eager's numbers
// (trace/cpu_draws.h). What eager draws in other ways (normal numbers) are PyTorch's calls.
#include <algorithm>
#include <limits>
#include <numeric>

#include "ir/philox.h"
#include "ir/tensor.h"
#include "trace/cpu_draws.h"
#include "trace/lower/promote.h"

namespace ingot::trace {

namespace {

/// Numbers for the elements of a tensor of `sizes`, which eager counts along the dims in `order`.
struct Draw {
    Ints sizes, order;
    std::int64_t count = 1;
    PhiloxLayout layout;
};

Ints known(const SymInts& sizes) {
    Ints out;
    for (const c10::SymInt& s : sizes) {
        const auto n = s.maybe_as_int();
        if (!n) throw NotSupported("random numbers of a symbolic size");
        out.push_back(*n);
    }
    return out;
}

Draw draw_for(const at::Tensor& like) {
    if (!like.is_cuda()) throw NotSupported("random numbers on a processor");
    Draw d{known(like.sym_sizes().vec()), {}, 1, {}};
    for (std::int64_t n : d.sizes) d.count *= n;
    if (d.count == 0 || d.count > std::numeric_limits<std::int32_t>::max())
        throw NotSupported("random numbers of such a size");
    d.order.resize(d.sizes.size());
    std::iota(d.order.begin(), d.order.end(), 0);
    return d;
}

void count_as_it_lies(Draw& d, const at::Tensor& like) {
    const Ints strides = known(like.sym_strides().vec());
    std::ranges::stable_sort(d.order, std::greater<>{}, [&](std::int64_t dim) {
        return strides[static_cast<std::size_t>(dim)];
    });
}

const GpuDraws& draws_of(Call& call) {
    RecorderState& s = call.state();
    if (!s.gpu_draws) s.gpu_draws = how_eager_draws(s.device.value());
    if (!*s.gpu_draws) throw NotSupported("eager draws in a way that is not known");
    return **s.gpu_draws;
}

/// Takes the numbers from the generator: nothing may be refused behind it.
ValueId take_bits(Call& call, Draw d) {
    constexpr std::int64_t kBlock = 256, kDrawnAtOnce = 4;
    const GpuDraws& gpu = draws_of(call);
    d.layout.threads = std::min((d.count + kBlock - 1) / kBlock * kBlock, gpu.threads);
    d.layout.small = true;
    const std::int64_t increment =
        ((d.count - 1) / (d.layout.threads * kDrawnAtOnce) + 1) * kDrawnAtOnce;

    Emitter& e = call.emit();
    RecorderState& s = call.state();
    s.uses_random = true;
    if (!s.random_run)
        s.random_run = RandomRun{
            e.op(
                Prim::RandState, {},
                {{"dtype", DType::I64}, {"sizes", Sizes{Expr(2)}}, {"increment", std::int64_t{0}}}),
            0};
    RandomRun& run = *s.random_run;
    const auto part = [&](std::int64_t i) { return e.select(run.state, 0, c10::SymInt(i)); };
    const ValueId seed = part(0);
    ValueId offset = part(1);
    if (run.drawn != 0) offset = e.add(offset, e.full(DType::I64, {}, run.drawn));
    run.drawn += increment;
    s.graph.node(s.graph.values()[run.state].producer).attrs.set("increment", run.drawn);

    SymInts lying;
    Ints back(d.order.size());
    for (std::size_t i = 0; i < d.order.size(); ++i) {
        const auto dim = static_cast<std::size_t>(d.order[i]);
        lying.emplace_back(d.sizes[dim]);
        back[dim] = static_cast<std::int64_t>(i);
    }
    const ValueId place = e.permute(e.reshape(e.iota(DType::I64, {d.count}, 0), lying), back);
    const SymInts sizes(d.sizes.begin(), d.sizes.end());
    return e.op(Prim::Philox, {place, e.expand(seed, sizes), e.expand(offset, sizes)},
                {{"layout", d.layout.packed()}});
}

/// Where the uniform number (in (0, 1]) is below `p`.
ValueId below(Call& call, ValueId bits, double p) {
    Emitter& e = call.emit();
    const SymInts sizes = e.sizes(bits);
    return e.op(Prim::Lt, {bits, e.full(DType::I64, sizes, philox_threshold(p))});
}

/// What eager fills on processors, one number after another as it lies.
struct Row {
    SymInts sizes;  // from the dim with the longest stride
    Ints back;      // the order of dims that makes the tensor of it
};

Row row_of(const Layout& layout) {
    if (!eager_draws_as_known()) throw NotSupported("eager draws in a way that is not known");
    const auto rank = layout.sizes.size();
    Row row{layout.sizes, Ints(rank)};
    std::iota(row.back.begin(), row.back.end(), 0);
    if (is_contiguous(layout)) return row;
    if (!is_dense(layout)) throw NotSupported("random numbers with gaps between them");
    Ints order = row.back;
    const Ints strides = known(layout.strides);
    std::ranges::stable_sort(order, std::greater<>{}, [&](std::int64_t dim) {
        return strides[static_cast<std::size_t>(dim)];
    });
    for (std::size_t i = 0; i < rank; ++i) {
        const auto dim = static_cast<std::size_t>(order[i]);
        row.sizes[i] = layout.sizes[dim];
        row.back[dim] = static_cast<std::int64_t>(i);
    }
    return row;
}

/// Ones are drawn as bool, a byte each, for whoever reads them to convert: eager's generator gives
/// the same ones for all types.
ValueId ones_on_processor(Call& call, const Row& row, double p) {
    Emitter& e = call.emit();
    call.state().uses_random = true;
    const ValueId chance = e.expand(e.full(DType::F64, {}, p), row.sizes);
    return e.permute(e.op(Prim::RandBernoulli, {chance}, {{"dtype", DType::Bool}}), row.back);
}

void must_be_in_place(const Call& call) {
    if (!call.target.defined() || call.given("generator"))
        throw NotSupported("random numbers of another form");
}

void lower_dropout(Call& call) {
    const char* name = call.find("input") != nullptr ? "input" : "self";
    at::Tensor self = call.tensor(name);
    bool train = call.given("train") ? call.flag("train") : call.flag("training");
    double p = call.real("p");
    if (train && p != 0) throw NotSupported("dropout while training");
    call.give(self);
}

/// Eager's kernel gives each thread as many neighbours as lie in 16 bytes, if that leaves no rest
/// and the address allows it.
Draw draw_for_dropout(Call& call, const at::Tensor& self) {
    const auto bytes = static_cast<std::int64_t>(self.itemsize());
    Draw d = draw_for(self);
    const std::int64_t widest = bytes == 2 ? draws_of(call).widest : 16 / bytes;
    const bool dense = is_dense(layout_of(self));
    std::int64_t width = dense ? widest : 1;
    const auto start = self.sym_storage_offset().maybe_as_int();
    if (!start) throw NotSupported("dropout at a symbolic place");
    while (width > 1 && (d.count % width != 0 || *start % width != 0)) width /= 2;
    // Where an input lies may differ from call to call.
    if (dense && d.count % 2 == 0 && call.promise(self).cell()->input >= 0)
        throw NotSupported("dropout of an input");
    d.layout.width = width;
    if (width > 1) count_as_it_lies(d, self);
    return d;
}

void lower_dropout_on_processor(Call& call, const at::Tensor& self, double p) {
    const DType type = to_dtype(self.scalar_type());
    // Eager rounds the scale to 16 bits where the operand has no more.
    if (type != DType::F32 && type != DType::F64) throw NotSupported("dropout of such a type");
    if (!(p >= 0 && p <= 1)) throw NotSupported("a probability beyond 0 and 1");
    const Layout layout = layout_of(self);
    if (!is_dense(layout)) throw NotSupported("random numbers with gaps between them");
    if (numel(layout.sizes).maybe_as_int() == 0) throw NotSupported("eager gives the operand back");
    const double keep = 1. - p;
    Emitter& e = call.emit();
    const ValueId kept = ones_on_processor(call, row_of(layout), keep);
    const ValueId x = call.read(self);
    const ValueId scale = e.number(x, keep == 0 ? 0. : 1. / keep);
    const ValueId scaled = e.mul(e.mul(x, e.convert(kept, type)), scale);
    call.give(scaled, layout.strides, self.device());
    call.give(kept, layout.strides, self.device());
}

void lower_native_dropout(Call& call) {
    at::Tensor self = call.tensor("input");
    const SymInts strides = preserved_strides(layout_of(self));
    Emitter& e = call.emit();
    if (!call.flag("train", true)) {  // the operand and a mask of ones
        call.give(call.read(self), strides, self.device());
        return call.give(e.full(DType::Bool, self.sym_sizes().vec(), true), strides, self.device());
    }
    const double p = call.real("p");
    const DType type = to_dtype(self.scalar_type());
    if (self.is_cpu()) return lower_dropout_on_processor(call, self, p);
    if (!is_float(type) || compute_type(type) != DType::F32 || bytes(type) < 2)
        throw NotSupported("dropout of such a type");
    if (!(p >= 0 && p < 1)) throw NotSupported("dropout that keeps nothing");
    const Draw draw = draw_for_dropout(call, self);
    const auto keep = static_cast<float>(1. - p);
    const ValueId kept = below(call, take_bits(call, draw), keep);
    const ValueId x = e.widen(call.read(self));
    const auto scale = static_cast<float>(1.0 / static_cast<double>(keep));
    const ValueId scaled = e.mul(e.mul(x, e.convert(kept, DType::F32)), e.number(x, scale));
    call.give(e.convert(scaled, type), strides, self.device());
    call.give(kept, strides, self.device());
}

void lower_native_dropout_backward(Call& call) {
    at::Tensor grad = call.tensor("grad_output"), mask = call.tensor("mask");
    Emitter& e = call.emit();
    const DType type = to_dtype(grad.scalar_type());
    if (!is_float(type)) throw NotSupported("dropout's gradient of a type that is no float");
    const ValueId g = e.widen(call.read(grad)), kept = e.convert(call.read(mask), e.dtype(g));
    const ValueId product = e.mul(e.mul(g, kept), e.number(g, call.real("scale")));
    call.give(e.convert(product, type), preserved_strides(layout_of(grad)), grad.device());
}

/// What eager fills a tensor with in place, one number after another as it lies.
Draw draw_in_place(Call& call) {
    must_be_in_place(call);
    const at::Tensor self = call.tensor("self");
    Draw d = draw_for(self);
    if (!is_dense(layout_of(self))) throw NotSupported("random numbers with gaps between them");
    if (self.scalar_type() == at::kDouble || is_complex(to_dtype(self.scalar_type())))
        throw NotSupported("random numbers of such a type");
    count_as_it_lies(d, self);
    return d;
}

ValueId ones_in_place(Call& call, const at::Tensor& self, double p) {
    static constexpr c10::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf,
                                                 at::kBool,  at::kByte,   at::kChar,     at::kShort,
                                                 at::kInt,   at::kLong};
    must_be_in_place(call);
    if (std::ranges::find(kTypes, self.scalar_type()) == std::end(kTypes))
        throw NotSupported("random numbers of such a type");
    return ones_on_processor(call, row_of(layout_of(self)), p);
}

void lower_bernoulli(Call& call) {
    if (!call.given("p") || !call.at("p").isDouble())
        throw NotSupported("probabilities that are a tensor");
    const double p = call.real("p");
    if (!(p >= 0 && p <= 1)) throw NotSupported("a probability beyond 0 and 1");
    const at::Tensor self = call.tensor("self");
    const ValueId ones = self.is_cpu() ? ones_in_place(call, self, p)
                                       : below(call, take_bits(call, draw_in_place(call)), p);
    call.give(call.emit().convert(ones, to_dtype(self.scalar_type())),
              preserved_strides(layout_of(self)), self.device());
}

/// Numbers in [0, 1), scaled by nothing: how eager rounds a range depends on its build.
void lower_unit(Call& call, const at::Tensor& self, DType type, bool unit) {
    if (!unit || (type != DType::F32 && type != DType::F64))
        throw NotSupported("uniform numbers of another range or type");
    must_be_in_place(call);
    const Row row = row_of(layout_of(self));
    Emitter& e = call.emit();
    call.state().uses_random = true;
    const ValueId numbers =
        e.op(Prim::RandUniform, {},
             {{"dtype", type}, {"sizes", to_sizes(row.sizes)}, {"low", 0.0}, {"high", 1.0}});
    call.give(e.permute(numbers, row.back), preserved_strides(layout_of(self)), self.device());
}

void lower_uniform(Call& call) {
    const at::Tensor self = call.tensor("self");
    const DType type = to_dtype(self.scalar_type());
    const double from = call.real_or("from", 0), to = call.real_or("to", 1);
    if (self.is_cpu()) return lower_unit(call, self, type, from == 0 && to == 1);
    if (type != DType::F32 && type != DType::BF16 && type != DType::F16)
        throw NotSupported("uniform numbers of such a type");
    if (!(from <= to)) throw NotSupported("uniform numbers of an empty range");
    const Draw draw = draw_in_place(call);
    const auto rounded = [&](double v) { return round_float(v, type); };
    Emitter& e = call.emit();
    const ValueId bits = take_bits(call, draw);
    const ValueId unit = e.add(e.mul(e.convert(bits, DType::F32), 0x1p-32), 0x1p-33);  // in (0, 1]
    const ValueId x =
        e.convert(e.op(Prim::Fma, {unit, e.number(unit, rounded(rounded(to) - rounded(from))),
                                   e.number(unit, rounded(from))}),
                  type);
    // The end that is not to be drawn stands for the one that is.
    const ValueId end = e.op(Prim::Eq, {x, e.number(x, rounded(to))});
    call.give(e.select(end, e.number(x, rounded(from)), x), preserved_strides(layout_of(self)),
              self.device());
}

/// Sizes of fresh memory that eager fills from its start to its end. Of sizes that are known the
/// factory is taken apart, as ever.
SymInts symbolic_sizes(Call& call) {
    if (call.find("size") == nullptr || call.given("generator") || call.target.defined())
        throw NotSupported("random numbers of another form");
    SymInts sizes = call.sizes("size");
    if (std::ranges::all_of(sizes,
                            [](const c10::SymInt& s) { return s.maybe_as_int().has_value(); }))
        throw NotSupported("the sizes are known");
    const c10::Device device = call.device("device").value_or(c10::Device(c10::kCPU));
    if (!call.state().resolve(device).is_cpu()) throw NotSupported("random numbers on a GPU");
    return sizes;
}
DType type_of_numbers(Call& call, c10::ScalarType otherwise) {
    return to_dtype(call.scalar_type("dtype").value_or(otherwise));
}
DType type_of_floats(Call& call) {
    const DType type = type_of_numbers(call, c10::typeMetaToScalarType(c10::get_default_dtype()));
    if (type != DType::F32 && type != DType::F64) throw NotSupported("numbers of such a type");
    return type;
}
void give_drawn(Call& call, Prim prim, const SymInts& sizes, Attrs attrs) {
    attrs.set("sizes", to_sizes(sizes));
    call.state().uses_random = true;
    call.give(call.emit().op(prim, {}, std::move(attrs)), contiguous(sizes), c10::kCPU);
}
void lower_rand(Call& call) {
    const SymInts sizes = symbolic_sizes(call);
    if (!eager_draws_as_known()) throw NotSupported("eager draws in a way that is not known");
    give_drawn(call, Prim::RandUniform, sizes,
               {{"dtype", type_of_floats(call)}, {"low", 0.0}, {"high", 1.0}});
}
void lower_randn(Call& call) {
    const SymInts sizes = symbolic_sizes(call);
    give_drawn(call, Prim::RandNormal, sizes,
               {{"dtype", type_of_floats(call)}, {"mean", 0.0}, {"std", 1.0}});
}
void lower_normal(Call& call) {
    const SymInts sizes = symbolic_sizes(call);
    if (!call.at("mean").isDouble() || !call.at("std").isDouble() || call.real("std") < 0)
        throw NotSupported("random numbers of another form");
    give_drawn(
        call, Prim::RandNormal, sizes,
        {{"dtype", type_of_floats(call)}, {"mean", call.real("mean")}, {"std", call.real("std")}});
}
void lower_randint(Call& call) {
    const SymInts sizes = symbolic_sizes(call);
    const DType type = type_of_numbers(call, c10::kLong);
    const std::int64_t low = call.integer_or("low", 0), high = call.integer("high");
    if (type != DType::I64 || low >= high) throw NotSupported("random numbers of such a type");
    give_drawn(call, Prim::RandInt, sizes, {{"dtype", type}, {"low", low}, {"high", high}});
}
void lower_randperm(Call& call) {
    if (call.given("generator") || call.target.defined() || call.size("n").maybe_as_int())
        throw NotSupported("a permutation of another form");
    const c10::Device device = call.device("device").value_or(c10::Device(c10::kCPU));
    if (!call.state().resolve(device).is_cpu()) throw NotSupported("random numbers on a GPU");
    const DType type = type_of_numbers(call, c10::kLong);
    if (type != DType::I64) throw NotSupported("a permutation of such a type");
    give_drawn(call, Prim::RandPerm, {call.size("n")}, {{"dtype", type}});
}

}  // namespace

std::span<const LoweringEntry> random_lowerings() {
    static constexpr LoweringEntry table[] = {
        {"native_dropout", lower_native_dropout},
        {"native_dropout_backward", lower_native_dropout_backward},
        {"dropout", lower_dropout},
        {"bernoulli", lower_bernoulli},
        {"uniform", lower_uniform},
        {"rand", lower_rand},
        {"randn", lower_randn},
        {"normal", lower_normal},
        {"randint", lower_randint},
        {"randperm", lower_randperm},
    };
    return table;
}

}  // namespace ingot::trace
