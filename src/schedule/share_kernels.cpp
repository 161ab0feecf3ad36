// See share_kernels.h. A kernel is written as a skeleton, in which numbers are holes, and the list
// of its numbers; kernels of one skeleton are told apart by the list alone.
#include "schedule/share_kernels.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "ir/error.h"
#include "schedule/kernel_key.h"

namespace ingot {

namespace {

using Numbers = std::vector<std::int64_t>;

/// Which numbers may be holes. What runs at every call keeps the extents of its loops, but for the
/// length of a generated product's sum, which the shared inner loops take as an argument anyway.
enum class Freedom : std::uint8_t { Extents, Sums, Offsets };

/// Calls visitor.extent(loop, free), visitor.offset(expr) for all that a kernel has, in order.
template <class Visitor>
class Walk {
  public:
    Walk(Visitor& visitor, Freedom freedom) : visitor_(visitor), freedom_(freedom) {}

    void kernel(Kernel& k) {
        for (Nest& n : k.nests) {
            loops(n.loops, true);
            for (Phase& p : n.phases) phase(p);
        }
        if (k.contraction) {
            Contraction c = *k.contraction;
            // Tiles are made for numbers of rows and columns; the sum's length may be any.
            for (auto* list : {&c.batch, &c.m, &c.n}) loops(*list, false);
            if (c.k.size() == 1)
                visitor_.extent(c.k[0], freedom_ != Freedom::Offsets);
            else
                loops(c.k, false);
            insts(c.a_insts);
            insts(c.b_insts);
            phase(c.epilogue);
            k.contraction = std::make_shared<const Contraction>(std::move(c));
        }
        for (KernelBuffer& b : k.buffers) visitor_.offset(b.elements);
    }

  private:
    void loops(std::vector<Loop>& list, bool free) {
        for (Loop& l : list)
            visitor_.extent(l, free && freedom_ == Freedom::Extents && l.kind != LoopKind::Unroll);
    }
    void insts(std::vector<Inst>& list) {
        for (Inst& i : list) {
            if (i.kind == InstKind::Load || i.kind == InstKind::Index) visitor_.offset(i.offset);
            if (i.kind == InstKind::Bind) visitor_.give_up();
        }
    }
    void phase(Phase& p) {
        // How many terms a sum has decides in which order they are added.
        loops(p.loops, p.reductions.empty());
        insts(p.insts);
        for (Store& s : p.stores) visitor_.offset(s.offset);
    }

    Visitor& visitor_;
    Freedom freedom_;
};

/// An expression as a sum: terms with their coefficients, and a constant.
struct Terms {
    std::vector<std::pair<Expr, std::int64_t>> terms;
    std::int64_t constant = 0;
};

Terms terms_of(Expr e) {
    if (e.is_constant()) return {{}, e.constant()};
    const ExprNode& n = *e.node();
    if (n.kind != ExprKind::Add) return {{{e, 1}}, 0};
    Terms sum{{}, n.constant};
    for (std::size_t i = 0; i < n.args.size(); ++i)
        sum.terms.emplace_back(n.args[i], n.coefficients[i]);
    return sum;
}

/// Writes the skeleton and empties the kernel's expressions on the way.
class Skeleton {
  public:
    /// Nothing for a kernel that cannot be shared.
    static std::optional<std::pair<std::string, Numbers>> of(Kernel kernel, Freedom freedom) {
        if (!kernel.sizes.empty() || kernel.instances > 1) return std::nullopt;
        Skeleton s;
        Walk(s, freedom).kernel(kernel);
        if (s.refused_) return std::nullopt;
        return std::pair(s.text_ + sched::kernel_key(kernel), std::move(s.numbers_));
    }

    void extent(Loop& l, bool free) {
        if (!l.extent.is_constant()) return give_up();
        if (free)
            numbers_.push_back(l.extent.constant());
        else
            text_ += std::to_string(l.extent.constant());
        text_ += ';';
        declare(l.var);
        l.extent = 0;
        l.var = 0;
    }
    void offset(Expr& e) {
        Written w = write(e);
        text_ += w.text + ';';
        numbers_.insert(numbers_.end(), w.numbers.begin(), w.numbers.end());
        e = 0;
    }
    void give_up() { refused_ = true; }

  private:
    friend class Filling;
    struct Written {
        std::string text;
        Numbers numbers;
        friend bool operator<(const Written& a, const Written& b) { return a.text < b.text; }
    };

    /// A later phase may use a variable again.
    void declare(Expr variable) { variables_[variable.node()] = declared_++; }

    /// The order of terms is that of their text: the pool's depends on what else it has seen.
    Written write(Expr e) {
        const Terms sum = terms_of(e);
        std::vector<Written> parts;
        for (const auto& [term, coefficient] : sum.terms) {
            Written w = atom(term);
            if (coefficient == 1 || coefficient == -1) {
                w.text += coefficient == 1 ? '+' : '-';
            } else {
                w.text += '*';
                w.numbers.insert(w.numbers.begin(), coefficient);
            }
            parts.push_back(std::move(w));
        }
        std::ranges::stable_sort(parts, std::less{});
        Written all;
        for (Written& w : parts) {
            all.text += w.text;
            all.numbers.insert(all.numbers.end(), w.numbers.begin(), w.numbers.end());
        }
        all.numbers.push_back(sum.constant);
        return all;
    }

    Written atom(Expr e) {
        const ExprNode& n = *e.node();
        Written w;
        if (n.kind == ExprKind::Symbol) {
            const auto found = variables_.find(e.node());
            if (found == variables_.end())
                give_up();
            else
                w.text = "v" + std::to_string(found->second);
        } else if ((n.kind == ExprKind::FloorDiv || n.kind == ExprKind::Mod) &&
                   n.args[1].is_constant()) {
            w = write(n.args[0]);
            w.text = "(" + w.text + (n.kind == ExprKind::Mod ? ")%" : ")/") +
                     std::to_string(n.args[1].constant());
        } else {
            give_up();
        }
        return w;
    }

    std::string text_;
    Numbers numbers_;
    std::unordered_map<const ExprNode*, std::size_t> variables_;
    std::size_t declared_ = 0;
    bool refused_ = false;
};

/// Fills a skeleton's holes: with sizes where its kernels differ.
class Filling {
  public:
    Filling(ExprPool& pool, const std::vector<Expr>& values, int& names)
        : pool_(pool), values_(values), names_(names) {}

    void extent(Loop& l, bool free) {
        const Expr extent = free ? values_[next_++] : l.extent;
        order_.declare(l.var);
        Expr& variable = with_[l.var.node()];
        variable = l.var;
        if (extent == l.extent) return;
        variable = pool_.index("shared_i" + std::to_string(names_++), extent);
        l.var = variable;
        l.extent = extent;
    }
    void offset(Expr& e) { e = fill(e); }
    void give_up() { throw InternalError("a kernel that cannot be shared was filled"); }

  private:
    Expr fill(Expr e) {
        const Terms sum = terms_of(e);
        std::vector<std::pair<std::string, std::size_t>> order;
        for (std::size_t i = 0; i < sum.terms.size(); ++i) {
            const std::int64_t c = sum.terms[i].second;
            order.emplace_back(order_.atom(sum.terms[i].first).text + (c == 1    ? '+'
                                                                       : c == -1 ? '-'
                                                                                 : '*'),
                               i);
        }
        std::ranges::stable_sort(order, std::less{}, [](const auto& o) { return o.first; });
        Expr all = 0;
        for (const auto& [text, i] : order) {
            const auto& [term, c] = sum.terms[i];
            const Expr factor = c == 1 || c == -1 ? Expr(c) : values_[next_++];
            all += factor * atom(term);
        }
        return all + values_[next_++];
    }
    Expr atom(Expr e) {
        const ExprNode& n = *e.node();
        if (n.kind == ExprKind::Symbol) return with_.at(e.node());
        const Expr a = fill(n.args[0]);
        return n.kind == ExprKind::Mod ? mod(a, n.args[1]) : floor_div(a, n.args[1]);
    }

    ExprPool& pool_;
    const std::vector<Expr>& values_;
    int& names_;
    std::size_t next_ = 0;
    Skeleton order_;
    std::unordered_map<const ExprNode*, Expr> with_;
};

/// What is known of a size: few facts, so that other programs come to the same kernel.
Range range_of(std::int64_t least) {
    if (least >= 1) return {1, Range::kMax};
    return least == 0 ? Range{0, Range::kMax} : Range{};
}

class Sharing {
  public:
    Sharing(Plan& plan, const KernelChoices& choices)
        : plan_(plan),
          choices_(choices),
          place_(plan.kernels.size(), -1),
          sizes_(plan.kernels.size()),
          every_call_(plan.kernels.size()) {}

    void run() {
        for (const Step& s : plan_.steps)
            if (const auto* step = std::get_if<KernelStep>(&s))
                every_call_[static_cast<std::size_t>(step->kernel)] = true;
        share(Freedom::Extents, false);
        share(Freedom::Sums, true);
        share(Freedom::Offsets, true);
        if (made_.empty()) return;
        const std::vector<Kernel> before = std::exchange(plan_.kernels, {});
        // In the order of the plan's kernels, each shared one in the place of its first.
        std::vector<std::int32_t> number(made_.size(), -1), moved(before.size());
        for (std::size_t k = 0; k < before.size(); ++k) {
            std::int32_t fresh = static_cast<std::int32_t>(plan_.kernels.size());
            if (place_[k] >= 0) {
                std::int32_t& known = number[static_cast<std::size_t>(place_[k])];
                if (known < 0) {
                    known = fresh;
                    plan_.kernels.push_back(std::move(made_[static_cast<std::size_t>(place_[k])]));
                }
                fresh = known;
            } else {
                plan_.kernels.push_back(before[k]);
            }
            moved[k] = fresh;
        }
        for (auto* steps : {&plan_.frozen_steps, &plan_.steps})
            for (Step& s : *steps)
                if (auto* step = std::get_if<KernelStep>(&s)) {
                    const auto k = static_cast<std::size_t>(step->kernel);
                    if (place_[k] >= 0) step->sizes = sizes_[k];
                    step->kernel = moved[k];
                }
    }

  private:
    struct Member {
        std::size_t kernel;
        Numbers numbers;
        std::string choices;
    };

    void share(Freedom freedom, bool every_call) {
        std::map<std::string, std::vector<Member>> groups;
        for (std::size_t k = 0; k < plan_.kernels.size(); ++k) {
            if (place_[k] >= 0 || every_call_[k] != every_call) continue;
            if (auto s = Skeleton::of(plan_.kernels[k], freedom))
                groups[std::move(s->first)].push_back({k, std::move(s->second), {}});
        }
        for (auto& [skeleton, members] : groups) {
            if (members.size() < 2) continue;
            std::map<std::string, std::vector<Member>> alike;
            for (Member& m : members) {
                m.choices = choices_(plan_.kernels[m.kernel]);
                alike[m.choices].push_back(std::move(m));
            }
            for (const auto& [choice, same] : alike)
                if (same.size() > 1) join(same, freedom);
        }
    }

    void join(const std::vector<Member>& members, Freedom freedom) {
        std::vector<Expr> values, symbols;
        std::vector<Sizes> sizes(members.size());
        std::map<Numbers, Expr> known;
        for (std::size_t p = 0; p < members[0].numbers.size(); ++p) {
            Numbers column;
            for (const Member& m : members) column.push_back(m.numbers[p]);
            const auto [least, most] = std::ranges::minmax(column);
            if (least == most) {
                values.emplace_back(least);
                continue;
            }
            auto [it, fresh] = known.try_emplace(column);
            if (fresh) {
                it->second =
                    plan_.pool->symbol("shared_s" + std::to_string(names_++), range_of(least));
                symbols.push_back(it->second);
                for (std::size_t m = 0; m < members.size(); ++m) sizes[m].emplace_back(column[m]);
            }
            values.push_back(it->second);
        }
        Kernel kernel = plan_.kernels[members[0].kernel];
        Filling filling(*plan_.pool, values, names_);
        Walk(filling, freedom).kernel(kernel);
        kernel.sizes = symbols;
        if (choices_(kernel) != members[0].choices) return;
        for (std::size_t m = 0; m < members.size(); ++m) {
            place_[members[m].kernel] = static_cast<std::int32_t>(made_.size());
            sizes_[members[m].kernel] = std::move(sizes[m]);
        }
        made_.push_back(std::move(kernel));
    }

    Plan& plan_;
    const KernelChoices& choices_;
    std::vector<std::int32_t> place_;  // by kernel: into made_
    std::vector<Sizes> sizes_;         // by kernel, where it is shared
    std::vector<bool> every_call_;     // by kernel: more than folding and packing weights
    std::vector<Kernel> made_;
    int names_ = 0;
};

}  // namespace

void share_kernels(Plan& plan, const KernelChoices& choices) { Sharing(plan, choices).run(); }

}  // namespace ingot
