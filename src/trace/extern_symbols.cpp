// See extern_symbols.h.
#include "trace/extern_symbols.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "ir/relation.h"
#include "trace/lower/emitter.h"
#include "trace/tensors.h"

namespace ingot::trace {
namespace {

using torch::jit::Stack;
using Point = std::vector<std::int64_t>;  // numbers of the symbols, in order

c10::IValue map_numbers(const c10::IValue& v, const std::function<c10::IValue(Expr)>& number) {
    if (v.isSymInt()) return number(unwrap(v.toSymInt()));
    if (!v.isList() || !std::ranges::any_of(v.toListRef(), &c10::IValue::isSymInt)) return v;
    bool numbers = true;
    std::vector<c10::IValue> mapped;
    for (const c10::IValue& e : v.toListRef()) {
        mapped.push_back(e.isSymInt() ? number(unwrap(e.toSymInt())) : e);
        numbers = numbers && mapped.back().isInt();
    }
    if (numbers) {
        std::vector<std::int64_t> plain;
        for (const c10::IValue& e : mapped) plain.push_back(e.toInt());
        return plain;
    }
    std::vector<c10::SymInt> some;
    for (const c10::IValue& e : mapped) some.push_back(e.toSymInt());
    return c10::IValue(c10::SymIntArrayRef(some));
}

/// The arguments with every symbolic number replaced.
Stack replaced(const Stack& arguments, const std::function<c10::IValue(Expr)>& number) {
    Stack out;
    const auto size_of = [&](Expr e) {
        const c10::IValue v = number(e);
        return v.isInt() ? c10::SymInt(v.toInt()) : v.toSymInt();
    };
    for (const c10::IValue& v : arguments)
        out.push_back(map_numbers(map_tensors(v,
                                              [&](const at::Tensor& t) {
                                                  if (!t.defined() || !t.is_meta()) return t;
                                                  SymInts sizes, strides;
                                                  for (Expr e : unwrap(t.sym_sizes()))
                                                      sizes.push_back(size_of(e));
                                                  for (Expr e : unwrap(t.sym_strides()))
                                                      strides.push_back(size_of(e));
                                                  return at::empty_strided_symint(sizes, strides,
                                                                                  t.options());
                                              }),
                                  number));
    return out;
}

/// All sizes and integers of the arguments, each once.
std::vector<Expr> sizes_in(const Stack& arguments) {
    std::vector<Expr> all;
    const auto add = [&](Expr e) {
        if (std::ranges::find(all, e) == all.end()) all.push_back(e);
    };
    const auto number = [&](const c10::IValue& v) {
        if (v.isSymInt()) add(unwrap(v.toSymInt()));
    };
    for (const c10::IValue& v : arguments) {
        number(v);
        if (v.isList())
            for (const c10::IValue& e : v.toListRef()) number(e);
        for_each_tensor(v, [&](const at::Tensor& t) {
            if (!t.defined()) return;
            for (Expr e : unwrap(t.sym_sizes())) add(e);
        });
    }
    return all;
}

std::vector<Expr> symbols_in(const Stack& arguments) {
    std::vector<Expr> all;
    for (Expr e : sizes_in(arguments)) collect_symbols(e, all);
    for (const c10::IValue& v : arguments)
        for_each_tensor(v, [&](const at::Tensor& t) {
            if (!t.defined()) return;
            for (Expr e : unwrap(t.sym_strides())) collect_symbols(e, all);
        });
    return all;
}

std::optional<Stack> on_trial(const std::shared_ptr<ExprPool>& pool, SymbolicSizes& symbols,
                              const Stack& arguments, const std::vector<Expr>& names,
                              const std::function<void(Stack&)>& run) {
    const auto trial = std::make_shared<SymbolicSizes>(pool);
    for (Expr s : names) (void)trial->symbol(to_string(s), symbols.hint(s), s.range());
    Stack stack = replaced(arguments, [&](Expr e) { return c10::IValue(trial->wrap(e)); });
    try {
        run(stack);
    } catch (const std::exception&) {
        return std::nullopt;
    }
    if (!trial->specialised().empty()) return std::nullopt;
    for (const SizeGuard& g : trial->guards()) (void)symbols.decide(g.relation, g.left, g.right);
    return replaced(stack, [&](Expr e) { return c10::IValue(symbols.wrap(e)); });
}

// ---- by examples ----

class Examples {
  public:
    Examples(SymbolicSizes& symbols, const Stack& arguments, std::vector<Expr> names)
        : symbols_(symbols), arguments_(arguments), names_(std::move(names)) {
        for (Expr s : names_) first_.push_back(symbols_.hint(s));
    }

    /// Runs the function on numbers; false where it tells too little.
    bool ask(const std::function<void(Stack&)>& run) {
        if (!add(first_, run)) return false;
        std::mt19937 random(17);
        constexpr std::size_t kWanted = 14;
        for (int tries = 0; tries < 400 && points_.size() < kWanted; ++tries) {
            Point p = first_;
            const int step = static_cast<int>(random() % 13) - 4;
            for (std::size_t i = 0; i < p.size(); ++i)
                p[i] += tries % 2 == 0 ? step : static_cast<int>(random() % 13) - 4;
            if (std::ranges::find(points_, p) == points_.end() && fits(p)) (void)add(p, run);
        }
        constexpr std::size_t kFew = 8;
        if (points_.size() < kFew) return false;
        for (std::size_t i = 0; i < names_.size(); ++i)  // each symbol has to have varied
            if (std::ranges::all_of(points_, [&](const Point& p) { return p[i] == first_[i]; }))
                return false;
        return true;
    }

    /// The results' descriptions as expressions.
    std::optional<Stack> results() const {
        const std::vector<Expr> atoms = sizes_in(arguments_);
        Stack out = answers_[0];
        std::size_t tensor = 0;
        bool found = true;
        for (c10::IValue& v : out) {
            if (v.isInt() || v.isSymInt()) return std::nullopt;
            v = map_tensors(v, [&](const at::Tensor& t) {
                if (!t.defined()) return t;
                const std::optional<at::Tensor> described = describe(t, tensor++, atoms);
                found = found && described;
                return described.value_or(t);
            });
        }
        return found ? std::optional(out) : std::nullopt;
    }

  private:
    std::int64_t number(Expr e, const Point& p) const {
        if (e.is_constant()) return e.constant();
        return evaluate(e, [&](Expr symbol) {
            const auto at = std::ranges::find(names_, symbol);
            return at == names_.end() ? symbols_.hint(symbol)
                                      : p[static_cast<std::size_t>(at - names_.begin())];
        });
    }
    /// Whether the program holds for these numbers.
    bool fits(const Point& p) const {
        for (std::size_t i = 0; i < p.size(); ++i)
            if (p[i] < names_[i].range().lo || p[i] > names_[i].range().hi) return false;
        return std::ranges::all_of(symbols_.guards(), [&](const SizeGuard& g) {
            return holds(g.relation, number(g.left, p), number(g.right, p));
        });
    }
    bool add(const Point& p, const std::function<void(Stack&)>& run) {
        Stack stack = replaced(arguments_, [&](Expr e) { return c10::IValue(number(e, p)); });
        try {
            run(stack);
        } catch (const std::exception&) {
            return false;
        }
        std::vector<at::Tensor> tensors;
        for (const c10::IValue& v : stack)
            for_each_tensor(v, [&](const at::Tensor& t) {
                if (t.defined()) tensors.push_back(t);
            });
        if (!tensors_.empty()) {
            if (tensors.size() != tensors_[0].size()) return false;
            for (std::size_t i = 0; i < tensors.size(); ++i)
                if (tensors[i].dim() != tensors_[0][i].dim()) return false;
        }
        points_.push_back(p);
        answers_.push_back(std::move(stack));
        tensors_.push_back(std::move(tensors));
        return true;
    }

    using Numbers = std::vector<std::int64_t>;  // by example
    Numbers numbers(Expr e) const {
        Numbers out;
        for (const Point& p : points_) out.push_back(number(e, p));
        return out;
    }
    /// An expression that has these numbers.
    std::optional<Expr> expression(const Numbers& wanted, const std::vector<Expr>& atoms) const {
        if (std::ranges::all_of(wanted, [&](std::int64_t n) { return n == wanted[0]; }))
            return Expr(wanted[0]);
        const auto is = [&](Expr e) { return numbers(e) == wanted; };
        for (Expr a : atoms)
            if (is(a)) return a;
        for (Expr a : atoms) {
            if (a.is_constant()) continue;
            const std::int64_t first = number(a, points_[0]);
            for (std::int64_t times = 1; times <= 8; ++times)
                if (const Expr e = Expr(times) * a + Expr(wanted[0] - times * first); is(e))
                    return e;
            // floor((times * a + c) / by): what windows with steps and scales give.
            for (std::int64_t by = 2; by <= 16; ++by)
                for (std::int64_t times = 1; times <= (by <= 4 ? 3 : 1); ++times)
                    for (std::int64_t rest = 0; rest < by; ++rest) {
                        const std::int64_t c = wanted[0] * by + rest - times * first;
                        if (const Expr e = floor_div(Expr(times) * a + Expr(c), Expr(by)); is(e))
                            return e;
                    }
        }
        for (Expr a : atoms)
            for (Expr b : atoms)
                if (!a.is_constant() && is(a * b)) return a * b;
        return std::nullopt;
    }
    std::optional<at::Tensor> describe(const at::Tensor& t, std::size_t index,
                                       const std::vector<Expr>& atoms) const {
        std::vector<Expr> sizes, strides(static_cast<std::size_t>(t.dim()));
        for (std::int64_t d = 0; d < t.dim(); ++d) {
            Numbers wanted;
            for (const auto& tensors : tensors_) wanted.push_back(tensors[index].size(d));
            const auto size = expression(wanted, atoms);
            if (!size) return std::nullopt;
            sizes.push_back(*size);
        }
        // They lie densely, in some order of dims.
        std::vector<std::size_t> order(sizes.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
            return t.stride(static_cast<std::int64_t>(a)) > t.stride(static_cast<std::int64_t>(b));
        });
        Expr stride = 1;
        for (std::size_t i = order.size(); i-- > 0;) {
            const std::size_t d = order[i];
            strides[d] = stride;
            Numbers found;
            for (const auto& tensors : tensors_)
                found.push_back(tensors[index].stride(static_cast<std::int64_t>(d)));
            if (found != numbers(stride)) return std::nullopt;
            stride = stride * max(sizes[d], Expr(1));
        }
        return at::empty_strided_symint(symbols_.wrap(sizes), symbols_.wrap(strides), t.options());
    }

    SymbolicSizes& symbols_;
    const Stack& arguments_;
    std::vector<Expr> names_;
    Point first_;
    std::vector<Point> points_;
    std::vector<Stack> answers_;
    std::vector<std::vector<at::Tensor>> tensors_;
};

}  // namespace

std::optional<Stack> symbolic_results(const std::shared_ptr<ExprPool>& pool, SymbolicSizes& symbols,
                                      const Stack& arguments,
                                      const std::function<void(Stack&)>& run) {
    const std::vector<Expr> names = symbols_in(arguments);
    if (names.empty()) return std::nullopt;
    if (auto results = on_trial(pool, symbols, arguments, names, run)) return results;
    constexpr std::size_t kMost = 6;  // sets of numbers grow with the symbols
    if (names.size() > kMost) return std::nullopt;
    Examples examples(symbols, arguments, names);
    return examples.ask(run) ? examples.results() : std::nullopt;
}

}  // namespace ingot::trace
