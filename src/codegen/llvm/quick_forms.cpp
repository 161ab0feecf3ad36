// See quick_forms.h.
#include "codegen/llvm/quick_forms.h"

#include <algorithm>
#include <map>
#include <optional>

namespace ingot::codegen {

namespace {

class Former {
  public:
    explicit Former(const Phase& from) : from_(from), users_(from.insts.size()) {
        for (InstId i = 0; i < from.insts.size(); ++i) {
            for (InstId o : from.insts[i].operands)
                if (users_[o].empty() || users_[o].back() != i) users_[o].push_back(i);
            if (from.insts[i].mask != kNone) users_[from.insts[i].mask].push_back(kNone);
        }
        for (const Reduction& r : from.reductions) {
            users_[r.value].push_back(kNone);
            if (r.index != kNone) users_[r.index].push_back(kNone);
        }
        for (const Store& s : from.stores) {
            users_[s.value].push_back(kNone);
            if (s.mask != kNone) users_[s.mask].push_back(kNone);
        }
    }

    Phase run() {
        to_ = from_;
        to_.insts.clear();
        for (InstId i = 0; i < from_.insts.size(); ++i) made_.push_back(form(i));
        for (Reduction& r : to_.reductions) {
            r.value = made_[r.value];
            if (r.index != kNone) r.index = made_[r.index];
        }
        for (Store& s : to_.stores) {
            s.value = made_[s.value];
            if (s.mask != kNone) s.mask = made_[s.mask];
        }
        return std::move(to_);
    }

  private:
    const Inst& inst(InstId i) const { return from_.insts[i]; }
    bool is(InstId i, Prim p) const {
        return i != kNone && inst(i).kind == InstKind::Prim && inst(i).prim == p &&
               inst(i).dtype == DType::F32;
    }
    std::optional<double> number(InstId i) const {
        if (inst(i).kind != InstKind::Constant || inst(i).dtype != DType::F32) return std::nullopt;
        return inst(i).constant.to_double();
    }
    bool is_one(InstId i) const { return number(i) == 1.0; }

    // 1 + v or v + 1.
    bool adds_one(InstId i, InstId v) const {
        if (!is(i, Prim::Add)) return false;
        const auto& x = inst(i).operands;
        return (x[0] == v && is_one(x[1])) || (x[1] == v && is_one(x[0]));
    }
    // v * v, of which only 1 - v * v is asked.
    bool is_square_from_one(InstId i, InstId v) const {
        if (!is(i, Prim::Mul) || inst(i).operands[0] != v || inst(i).operands[1] != v) return false;
        return std::ranges::all_of(users_[i], [&](InstId u) {
            return is(u, Prim::Sub) && is_one(inst(u).operands[0]) && inst(u).operands[1] == i;
        });
    }

    InstId append(Inst i) {
        to_.insts.push_back(std::move(i));
        return static_cast<InstId>(to_.insts.size() - 1);
    }
    InstId prim(Prim p, std::vector<InstId> operands) {
        Inst i;
        i.prim = p;
        i.dtype = DType::F32;
        i.operands = std::move(operands);
        return append(std::move(i));
    }
    InstId constant(double value) {
        Inst i;
        i.kind = InstKind::Constant;
        i.dtype = DType::F32;
        i.constant = Scalar(value);
        return append(std::move(i));
    }
    // A made value times a number; numbers meet.
    InstId scaled(InstId v, double by) {
        if (const auto it = scales_.find(v); it != scales_.end()) {
            by *= it->second.second;
            v = it->second.first;
        }
        if (by == 1) return v;
        const InstId r = prim(Prim::Mul, {v, constant(by)});
        scales_[r] = {v, by};
        return r;
    }

    InstId form(InstId i) {
        const Inst& n = inst(i);
        if (is(i, Prim::Tanh) && has_sigmoid_form(i)) {
            const InstId s =
                prim(Prim::Sigmoid, {prim(Prim::Mul, {made_[n.operands[0]], constant(2)})});
            sigmoids_[i] = s;
            return s;
        }
        if (is(i, Prim::Erf) && std::ranges::all_of(users_[i], [&](InstId u) {
                return u != kNone && adds_one(u, i);
            })) {
            const InstId r = prim(Prim::Erfc, {prim(Prim::Neg, {made_[n.operands[0]]})});
            complements_[i] = r;
            return r;
        }
        for (InstId o : n.operands) {
            if (const auto s = sigmoids_.find(o); s != sigmoids_.end()) {
                if (adds_one(i, o)) return scaled(s->second, 2);
                // t^2, of which 1 - t^2 is made.
                const InstId rest = prim(Prim::Sub, {constant(1), s->second});
                const InstId slope = prim(Prim::Mul, {s->second, rest});
                slopes_[i] = slope;
                return slope;
            }
            if (const auto c = complements_.find(o); c != complements_.end()) return c->second;
            if (const auto s = slopes_.find(o); s != slopes_.end()) return scaled(s->second, 4);
        }
        if (is(i, Prim::Mul))
            for (int k : {0, 1}) {
                const auto by = number(n.operands[static_cast<std::size_t>(k)]);
                const InstId v = made_[n.operands[static_cast<std::size_t>(1 - k)]];
                if (by && scales_.contains(v)) return scaled(v, *by);
            }
        Inst copy = n;
        for (InstId& o : copy.operands) o = made_[o];
        if (copy.mask != kNone) copy.mask = made_[copy.mask];
        return append(std::move(copy));
    }
    bool has_sigmoid_form(InstId t) const {
        return std::ranges::all_of(users_[t], [&](InstId u) {
            return u != kNone && (adds_one(u, t) || is_square_from_one(u, t));
        });
    }

    const Phase& from_;
    Phase to_;
    std::vector<std::vector<InstId>> users_;  // kNone: somebody outside the instructions
    std::vector<InstId> made_;                // by inst of from_
    std::map<InstId, InstId> sigmoids_, complements_, slopes_;  // by inst of from_
    std::map<InstId, std::pair<InstId, double>> scales_;        // by inst of to_
};

}  // namespace

Nest quick_forms(const Nest& nest) {
    Nest out = nest;
    for (Phase& p : out.phases) p = Former(p).run();
    return out;
}

}  // namespace ingot::codegen
