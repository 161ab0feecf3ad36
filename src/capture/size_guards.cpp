// See size_guards.h.
#include "capture/size_guards.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "ir/relation.h"

namespace ingot::capture {
namespace {

std::string text_of(const SizeGuard& g) {
    static constexpr const char* kSigns[] = {" == ", " != ", " < ", " <= "};
    std::string text = to_string(g.left);
    text += kSigns[static_cast<int>(g.relation)];
    text += to_string(g.right);
    return text;
}

}  // namespace

void SizeGuards::add_symbol(Expr e, std::int32_t node, std::int32_t dim) {
    if (std::ranges::none_of(sources_, [&](const Symbol& s) { return s.symbol == e; }))
        sources_.push_back({e, node, dim});
}

void SizeGuards::add_tensor(std::int32_t node, Sizes sizes, Sizes strides) {
    for (std::size_t d = 0; d < sizes.size(); ++d)
        if (sizes[d].is_symbol()) add_symbol(sizes[d], node, static_cast<std::int32_t>(d));
    tensors_.push_back({node, std::move(sizes), std::move(strides), {}});
    last_.clear();
}

void SizeGuards::add_number(std::int32_t node, Expr symbol) {
    add_symbol(symbol, node, kInteger);
    last_.clear();
}

void SizeGuards::add_rounded(FloatGuards::Index number, Expr symbol) {
    add_symbol(symbol, number, kRounded);
    last_.clear();
}

std::optional<std::pair<std::int32_t, std::int32_t>> SizeGuards::source_of(Expr symbol) const {
    for (const Symbol& s : sources_)
        if (s.symbol == symbol && s.dim != kRounded) return std::pair(s.node, s.dim);
    return std::nullopt;
}

std::int32_t SizeGuards::add_computed(Expr value) {
    computed_.push_back(value);
    return static_cast<std::int32_t>(computed_.size()) - 1;
}

std::int64_t SizeGuards::evaluate(Expr e, std::span<const std::int64_t> values) const {
    if (e.is_constant()) return e.constant();
    return ingot::evaluate(e, [&](Expr symbol) {
        for (std::size_t i = 0; i < sources_.size(); ++i)
            if (sources_[i].symbol == symbol) return values[i];
        throw InternalError("a size of no input");
    });
}

bool SizeGuards::check(std::span<PyObject* const> nodes, const FloatGuards& floats,
                       SymbolValues& values, FloatValues& float_values, std::string* failure) {
    values.clear();
    for (const Symbol& s : sources_) {
        if (s.dim == kRounded) {
            floats.compute_to(s.node, nodes, this, values, float_values);
            const double number = float_values[static_cast<std::size_t>(s.node)];
            constexpr double kExact = 0x1p53;
            if (!(number > -kExact && number < kExact)) return false;
            values.push_back(static_cast<std::int64_t>(number));
            continue;
        }
        PyObject* o = nodes[static_cast<std::size_t>(s.node)];
        std::int64_t value = 0;
        if (s.dim >= 0) {
            value = THPVariable_Unpack(o)
                        .unsafeGetTensorImpl()
                        ->sizes()[static_cast<std::size_t>(s.dim)];
        } else {
            int overflow = 0;
            value = PyLong_AsLongLongAndOverflow(o, &overflow);
            if (overflow != 0) return false;
        }
        values.push_back(value);
    }
    if (values != last_) {
        last_.clear();
        for (std::size_t i = 0; i < sources_.size(); ++i) {
            const Range range = sources_[i].symbol.range();
            if (values[i] >= range.lo && values[i] <= range.hi) continue;
            if (failure != nullptr)
                *failure = "the size " + to_string(sources_[i].symbol) + " is " +
                           std::to_string(values[i]) + ", outside " + std::to_string(range.lo) +
                           " to " + std::to_string(range.hi);
            return false;
        }
        for (const SizeGuard& g : relations_) {
            if (holds(g.relation, evaluate(g.left, values), evaluate(g.right, values))) continue;
            if (failure != nullptr) *failure = "sizes: " + text_of(g) + " no longer holds";
            return false;
        }
        for (Tensor& t : tensors_) {
            t.now.clear();
            for (Expr e : t.sizes) t.now.push_back(evaluate(e, values));
            for (Expr e : t.strides) t.now.push_back(evaluate(e, values));
        }
        last_ = values;
    }
    for (const Tensor& t : tensors_) {
        const auto& impl =
            *THPVariable_Unpack(nodes[static_cast<std::size_t>(t.node)]).unsafeGetTensorImpl();
        const std::size_t rank = t.sizes.size();
        const c10::IntArrayRef now(t.now);
        if (impl.sizes() == now.slice(0, rank) && impl.strides() == now.slice(rank)) continue;
        if (failure != nullptr) *failure = "sizes that were equal, or strides, are others";
        return false;
    }
    return true;
}

std::int64_t SizeGuards::computed(std::int32_t index, std::span<const std::int64_t> values) const {
    return evaluate(computed_[static_cast<std::size_t>(index)], values);
}

void SizeGuards::numbers(const SymbolValues& values, SymbolValues& into) const {
    for (std::size_t i = 0; i < sources_.size(); ++i)
        if (sources_[i].dim < 0) into.push_back(values[i]);
}

SymbolValues SizeGuards::example_numbers() const {
    SymbolValues all;
    for (const Symbol& s : sources_)
        if (s.dim < 0) all.push_back(symbols_->hint(s.symbol));
    return all;
}

std::vector<Expr> SizeGuards::symbols() const {
    std::vector<Expr> all;
    for (const Symbol& s : sources_) all.push_back(s.symbol);
    return all;
}

SymbolValues SizeGuards::example_values() const {
    SymbolValues all;
    for (const Symbol& s : sources_) all.push_back(symbols_->hint(s.symbol));
    return all;
}

std::vector<std::string> SizeGuards::sentences() const {
    std::vector<std::string> out;
    for (const SizeGuard& g : relations_) out.push_back("sizes: " + text_of(g));
    return out;
}

std::vector<std::string> SizeGuards::specialised(const FloatGuards& floats) const {
    std::vector<Expr> fixed = symbols_->specialised();
    std::vector<std::int32_t> integers;
    (void)floats.specialised(integers);
    for (const std::int32_t i : integers) fixed.push_back(computed_[static_cast<std::size_t>(i)]);
    std::vector<std::string> names;
    for (Expr e : fixed) {
        while (!e.is_constant() && e.node()->kind == ExprKind::Add && e.node()->args.size() == 1)
            e = e.node()->args[0];
        // That a quotient or a rest has some value leaves its parts open: `range(n // 8)`.
        if (!e.is_constant() &&
            (e.node()->kind == ExprKind::FloorDiv || e.node()->kind == ExprKind::Mod))
            continue;
        for (const Expr s : ingot::symbols(e)) names.push_back(to_string(s));
    }
    return names;
}

}  // namespace ingot::capture
