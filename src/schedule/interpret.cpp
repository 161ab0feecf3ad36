// The interpreter of loop nests; see interpret.h.
#include "schedule/interpret.h"

#include <cmath>

#include "ir/reference.h"

namespace ingot {

namespace {

// Symbols' numbers by node id, and expressions over them.
class Environment {
  public:
    void set(Expr symbol, std::int64_t value) {
        check(symbol.is_symbol(), "a loop variable is no symbol");
        std::size_t id = symbol.node()->id;
        if (id >= values_.size()) values_.resize(id + 1), known_.resize(id + 1);
        values_[id] = value;
        known_[id] = true;
    }
    std::int64_t get(Expr e) const {
        if (e.is_constant()) return e.constant();
        return ingot::evaluate(e, [this](Expr symbol) {
            std::size_t id = symbol.node()->id;
            check(id < known_.size() && known_[id],
                  "a kernel uses the unbound symbol " + symbol.node()->symbol);
            return values_[id];
        });
    }

  private:
    std::vector<std::int64_t> values_;
    std::vector<bool> known_;
};

struct Accumulator {
    Num value;
    Num index;
    bool empty = true;
};

class Interpreter {
  public:
    Interpreter(const Kernel& k, std::span<void* const> buffers,
                std::span<const std::int64_t> sizes, PointOrder order)
        : kernel_(k), order_(order) {
        check(sizes.size() == k.sizes.size(), "a kernel got another number of sizes");
        for (std::size_t i = 0; i < sizes.size(); ++i) env_.set(k.sizes[i], sizes[i]);
        std::size_t argument = 0;
        for (const KernelBuffer& b : k.buffers) {
            elements_.push_back(env_.get(b.elements));
            if (b.scope == BufferScope::Argument) {
                check(argument < buffers.size(), "a kernel got too few buffers");
                memory_.push_back(static_cast<std::uint8_t*>(buffers[argument++]));
                continue;
            }
            scratch_.emplace_back(static_cast<std::size_t>(elements_.back() * bytes(b.dtype)));
            memory_.push_back(scratch_.back().data());
        }
        check(argument == buffers.size(), "a kernel got too many buffers");
    }

    bool run() {
        for (const Nest& n : kernel_.nests) {
            round_ = n.round_intermediates;
            const bool runs = !n.loops.empty() && n.loops.back().kind == LoopKind::Run;
            run_ = runs ? n.loops.back().var : Expr(0);
            loops(n.loops, order_, [&] { point(n.phases); });
        }
        if (kernel_.contraction) contraction(*kernel_.contraction);
        return in_range_;
    }

  private:
    template <class Body>
    void loops(std::span<const Loop> list, PointOrder order, const Body& body) {
        if (list.empty()) return body();
        std::int64_t n = env_.get(list[0].extent);
        for (std::int64_t i = 0; i < n; ++i) {
            const bool forwards = order == PointOrder::Forwards || list[0].kind == LoopKind::Run;
            env_.set(list[0].var, forwards ? i : n - 1 - i);
            loops(list.subspan(1), order, body);
        }
    }
    template <class Body>
    void loops(std::span<const Loop> list, const Body& body) {
        loops(list, PointOrder::Forwards, body);
    }

    void point(const std::vector<Phase>& phases) {
        for (auto& s : scratch_) std::fill(s.begin(), s.end(), std::uint8_t{0xa5});
        accumulators_.assign(phases.size(), {});
        for (std::size_t i = 0; i < phases.size(); ++i) {
            accumulators_[i].resize(phases[i].reductions.size());
            loops(phases[i].loops, [&] { body(phases[i], accumulators_[i]); });
            finish(phases[i], accumulators_[i]);
        }
    }

    void body(const Phase& p, std::vector<Accumulator>& accumulators) {
        insts(p.insts, values_);
        for (std::size_t i = 0; i < p.reductions.size(); ++i)
            accumulate(p.reductions[i], p.insts, accumulators[i]);
        for (const Store& s : p.stores) store(s, p.insts);
    }

    std::uint8_t* address(std::int32_t buffer, std::int64_t offset) {
        check(buffer >= 0 && static_cast<std::size_t>(buffer) < memory_.size(),
              "a kernel uses a buffer it does not have");
        auto b = static_cast<std::size_t>(buffer);
        if (offset < 0 || offset >= elements_[b])
            throw InternalError("kernel '" + kernel_.name + "' touches element " +
                                std::to_string(offset) + " of buffer " + std::to_string(buffer) +
                                ", which has " + std::to_string(elements_[b]));
        return memory_[b] + offset * bytes(kernel_.buffers[b].dtype);
    }

    void insts(const std::vector<Inst>& list, std::vector<Num>& values) {
        values.resize(list.size());
        for (std::size_t i = 0; i < list.size(); ++i) {
            for (InstId v : list[i].operands) check(v < i, "an inst uses a later one");
            values[i] = inst(list[i], list, values);
        }
    }

    Num inst(const Inst& i, const std::vector<Inst>& list, const std::vector<Num>& values) {
        switch (i.kind) {
            case InstKind::Prim:
                return prim(i, list, values);
            case InstKind::Load: {
                if (i.mask != kNone && !values.at(i.mask).i) return to_num(i.constant, i.dtype);
                std::uint8_t* at = address(i.buffer, env_.get(i.offset));
                const KernelBuffer& b = kernel_.buffers[static_cast<std::size_t>(i.buffer)];
                check(b.dtype == i.dtype, "a load has another type than its buffer");
                check(b.read, "a load reads a buffer that is not marked read");
                return load_num(i.dtype, at);
            }
            case InstKind::Index:
                return {0, 0, wrap_int(env_.get(i.offset), i.dtype)};
            case InstKind::Constant:
                return to_num(i.constant, i.dtype);
            case InstKind::Reduced: {
                const Accumulator& a = accumulators_.at(static_cast<std::size_t>(i.phase))
                                           .at(static_cast<std::size_t>(i.reduction));
                return i.component == 1 ? a.index : a.value;
            }
            case InstKind::Accumulator:
                return dot_;
            case InstKind::Bind:
                return bind(i, values);
        }
        return {};
    }

    Num bind(const Inst& i, const std::vector<Num>& values) {
        std::int64_t v = values.at(i.operands.at(0)).i;
        if (i.imm != kBindAny) {
            std::int64_t extent = env_.get(i.extent);
            if (v < 0 && i.imm == kBindFromEnds) v += extent;
            if (v < 0 || v >= extent) {
                in_range_ = false;
                v = 0;
            }
        }
        env_.set(i.offset, v);
        return {0, 0, v};
    }

    Num prim(const Inst& i, const std::vector<Inst>& list, const std::vector<Num>& values) {
        std::vector<Num> x;
        for (InstId v : i.operands) x.push_back(values[v]);
        check(!x.empty(), "a prim inst needs operands");
        DType t = list[i.operands[i.prim == Prim::Select ? 1 : 0]].dtype;
        return evaluate_pointwise(i.prim, t, i.dtype, x, i.imm, round_);
    }

    void accumulate(const Reduction& r, const std::vector<Inst>& list, Accumulator& a) {
        Num v = convert_num(values_.at(r.value), list[r.value].dtype, r.dtype);
        Num index = r.index == kNone ? Num{} : values_.at(r.index);
        if (a.empty) {
            a = {v, index, false};
            return;
        }
        const DType t = r.dtype;
        auto is_less = [&](Num x, Num y) {
            const Num both[] = {x, y};
            return evaluate_pointwise(Prim::Lt, t, DType::Bool, both).i != 0;
        };
        auto is_nan = [&](Num x) { return !is_integral(t) && std::isnan(x.re); };
        switch (r.op) {
            case ReduceOp::Sum:
                a.value = {
                    a.value.re + v.re, a.value.im + v.im,
                    wrap_int(static_cast<std::int64_t>(static_cast<std::uint64_t>(a.value.i) +
                                                       static_cast<std::uint64_t>(v.i)),
                             t)};
                return;
            case ReduceOp::Prod: {
                auto z =
                    std::complex<double>(a.value.re, a.value.im) * std::complex<double>(v.re, v.im);
                if (!is_complex(t)) z = a.value.re * v.re;
                a.value = {
                    z.real(), z.imag(),
                    wrap_int(static_cast<std::int64_t>(static_cast<std::uint64_t>(a.value.i) *
                                                       static_cast<std::uint64_t>(v.i)),
                             t)};
                return;
            }
            case ReduceOp::And:
                a.value.i = a.value.i & v.i;
                return;
            case ReduceOp::Or:
                a.value.i = a.value.i | v.i;
                return;
            case ReduceOp::Xor:
                a.value.i = a.value.i ^ v.i;
                return;
            default:
                break;
        }
        // Max, Min and their positions: NaN wins, and among equals the smaller index.
        const bool largest = r.op == ReduceOp::Max || r.op == ReduceOp::ArgMax;
        bool better, equal;
        if (is_nan(a.value) || is_nan(v)) {
            better = is_nan(v) && !is_nan(a.value);
            equal = is_nan(v) && is_nan(a.value);
        } else {
            better = largest ? is_less(a.value, v) : is_less(v, a.value);
            equal = !is_less(a.value, v) && !is_less(v, a.value);
        }
        if (better || (equal && index.i < a.index.i)) a = {v, index, false};
    }

    // The result of no points, and rounding of those that had some.
    void finish(const Phase& p, std::vector<Accumulator>& accumulators) {
        for (std::size_t i = 0; i < p.reductions.size(); ++i) {
            const Reduction& r = p.reductions[i];
            Accumulator& a = accumulators[i];
            if (a.empty) a.value = identity(r.op, r.dtype);
            a.value = round_num(a.value, r.dtype);
        }
    }
    static Num identity(ReduceOp op, DType t) {
        const bool largest = op == ReduceOp::Max || op == ReduceOp::ArgMax;
        switch (op) {
            case ReduceOp::Prod:
                return {1, 0, 1};
            case ReduceOp::And:
                return {0, 0, t == DType::Bool ? 1 : -1};
            case ReduceOp::Max:
            case ReduceOp::Min:
            case ReduceOp::ArgMax:
            case ReduceOp::ArgMin: {
                if (!is_integral(t)) return {largest ? -HUGE_VAL : HUGE_VAL, 0, 0};
                if (t == DType::Bool) return {0, 0, !largest};
                std::int64_t top = is_signed_int(t) ? (1ull << (8 * bytes(t) - 1)) - 1 : -1;
                if (!is_signed_int(t)) return {0, 0, largest ? 0 : wrap_int(top, t)};
                return {0, 0, largest ? -top - 1 : top};
            }
            default:
                return {};
        }
    }

    void store(const Store& s, const std::vector<Inst>& list) {
        check(s.value < list.size(), "a store has no value");
        if (s.mask != kNone && !values_.at(s.mask).i) return;
        std::uint8_t* at = address(s.buffer, env_.get(s.offset));
        const KernelBuffer& b = kernel_.buffers[static_cast<std::size_t>(s.buffer)];
        check(b.dtype == list[s.value].dtype, "a store has another type than its buffer");
        check(b.written, "a store writes a buffer that is not marked written");
        Num v = values_[s.value];
        if (s.mode == StoreMode::AtomicAdd || (s.mode == StoreMode::Sum && env_.get(run_) != 0)) {
            const Num both[] = {load_num(b.dtype, at), v};
            v = evaluate_pointwise(Prim::Add, b.dtype, b.dtype, both);
        }
        store_num(b.dtype, at, v);
    }

    // The position of the current point in row-major order over `list`.
    std::int64_t position(const std::vector<Loop>& list) const {
        std::int64_t at = 0;
        for (const Loop& l : list) at = at * env_.get(l.extent) + env_.get(l.var);
        return at;
    }
    std::int64_t count(const std::vector<Loop>& list) const {
        std::int64_t n = 1;
        for (const Loop& l : list) n *= env_.get(l.extent);
        return n;
    }

    Num right_side(const Contraction& c) {
        if (c.b_panel == 0) {
            insts(c.b_insts, b_values_);
            return b_values_.back();
        }
        const Inst& load = c.b_insts.back();
        check(load.kind == InstKind::Load, "the packed side of a contraction is no load");
        std::int64_t p = c.b_panel, n = position(c.n), k = position(c.k), rows = count(c.k);
        std::int64_t panels = (count(c.n) + p - 1) / p;
        std::int64_t offset = ((position(c.batch) * panels + n / p) * rows + k) * p + n % p;
        return load_num(load.dtype, address(load.buffer, offset));
    }

    void contraction(const Contraction& c) {
        check(!c.a_insts.empty() && !c.b_insts.empty(), "a contraction needs both sides");
        round_ = c.round_intermediates;
        std::vector<Loop> outer = c.batch;
        outer.insert(outer.end(), c.m.begin(), c.m.end());
        outer.insert(outer.end(), c.n.begin(), c.n.end());
        const DType t = c.accumulate, ta = c.a_insts.back().dtype, tb = c.b_insts.back().dtype;
        loops(outer, order_, [&] {
            std::complex<double> sum = 0;
            std::uint64_t whole = 0;
            loops(c.k, [&] {
                insts(c.a_insts, a_values_);
                Num a = convert_num(a_values_.back(), ta, t);
                Num b = convert_num(right_side(c), tb, t);
                if (is_complex(t))
                    sum += std::complex<double>(a.re, a.im) * std::complex<double>(b.re, b.im);
                else
                    sum += a.re * b.re;
                whole += static_cast<std::uint64_t>(a.i) * static_cast<std::uint64_t>(b.i);
            });
            dot_ = round_num({sum.real(), sum.imag(), static_cast<std::int64_t>(whole)}, t);
            point({c.epilogue});
        });
    }

    const Kernel& kernel_;
    PointOrder order_;
    Environment env_;
    std::vector<std::int64_t> elements_;
    std::vector<std::uint8_t*> memory_;
    std::vector<std::vector<std::uint8_t>> scratch_;
    std::vector<std::vector<Accumulator>> accumulators_;
    std::vector<Num> values_, a_values_, b_values_;
    Num dot_;
    Expr run_;  // the variable of the nest's run, or 0
    bool round_ = true;
    bool in_range_ = true;
};

}  // namespace

bool evaluate(const Kernel& kernel, std::span<void* const> buffers,
              std::span<const std::int64_t> sizes, PointOrder order) {
    return Interpreter(kernel, buffers, sizes, order).run();
}

}  // namespace ingot
