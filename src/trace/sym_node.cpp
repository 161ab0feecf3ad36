// The nodes behind symbolic integers and truth values; see sym_node.h.
#include "trace/sym_node.h"

#include <c10/core/Contiguity.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/SymNodeImpl.h>

#include <cmath>

#include "ir/relation.h"
#include "trace/lower/emitter.h"

namespace ingot::trace {

using Relation = SizeGuard::Relation;

std::optional<bool> known(Relation relation, Expr left, Expr right) {
    // No size comes near the numbers that stand for "to the end"; arithmetic with them overflows.
    constexpr std::int64_t kHuge = std::int64_t{1} << 61;
    const auto huge = [](Expr e) {
        return !e.is_constant() ? 0 : e.constant() > kHuge ? 1 : e.constant() < -kHuge ? -1 : 0;
    };
    if (const int a = huge(left), b = huge(right); a != b)
        return relation == Relation::Ne || (relation != Relation::Eq && a < b);
    switch (relation) {
        case Relation::Eq:
            return known_eq(left, right);
        case Relation::Ne:
            if (auto equal = known_eq(left, right)) return !*equal;
            return std::nullopt;
        case Relation::Lt:
            return known_lt(left, right);
        case Relation::Le:
            return known_le(left, right);
    }
    throw InternalError("an unknown relation");
}

namespace {

using c10::SymNode;
using Env = std::shared_ptr<SymbolicSizes>;

/// What all three kinds of nodes share. Operands of one operation belong to one recording, as
/// PyTorch wraps numbers by the node they meet.
class Node : public c10::SymNodeImpl {
  public:
    explicit Node(Env env) : env_(std::move(env)) {}
    const Env& env() const { return env_; }

    bool is_int() override { return false; }
    bool is_bool() override { return false; }
    bool is_float() override { return false; }
    bool has_hint() override { return true; }
    SymNode clone() override { return SymNode::reclaim_copy(this); }
    SymNode wrap_int(int64_t number) override;
    SymNode wrap_float(double number) override;
    SymNode wrap_bool(bool truth) override;

    template <class T>
    static T& as(const SymNode& node) {
        auto* mine = dynamic_cast<T*>(node.get());
        if (mine == nullptr) throw NotSupported("a symbolic number of another kind");
        return *mine;
    }

  protected:
    Env env_;
};

/// A truth value: a constant, a relation, or a connection of two. Decided when asked for.
class BoolNode final : public Node {
  public:
    enum class Kind { Constant, Relation, And, Or, Not };
    BoolNode(Env env, bool truth) : Node(std::move(env)), truth_(truth) {}
    BoolNode(Env env, Relation relation, Expr left, Expr right)
        : Node(std::move(env)),
          kind_(Kind::Relation),
          relation_(relation),
          left_(left),
          right_(right) {
        if (auto truth = trace::known(relation, left, right)) {
            kind_ = Kind::Constant;
            truth_ = *truth;
        }
    }
    BoolNode(Env env, Kind kind, SymNode a, SymNode b)
        : Node(std::move(env)), kind_(kind), a_(std::move(a)), b_(std::move(b)) {}

    bool is_bool() override { return true; }
    std::optional<bool> known() const;
    bool decide() const;
    std::optional<bool> constant_bool() override { return known(); }
    std::optional<int64_t> maybe_as_int() override { return std::nullopt; }
    bool is_constant() override { return known().has_value(); }
    bool is_symbolic() override { return !known().has_value(); }
    bool guard_bool(const char*, int64_t) override { return decide(); }
    bool statically_known_true(const char*, int64_t) override { return known() == true; }
    bool bool_() override { return decide(); }
    int64_t guard_int(const char*, int64_t) override { return decide(); }
    std::string str() override;

    SymNode sym_not() override {
        return c10::make_intrusive<BoolNode>(env_, Kind::Not, clone(), SymNode());
    }
    SymNode sym_and(const SymNode& other) override {
        return c10::make_intrusive<BoolNode>(env_, Kind::And, clone(), other);
    }
    SymNode sym_or(const SymNode& other) override {
        return c10::make_intrusive<BoolNode>(env_, Kind::Or, clone(), other);
    }
    SymNode sym_ite(const SymNode& yes, const SymNode& no) override { return decide() ? yes : no; }
    SymNode eq(const SymNode& other) override {
        return wrap_bool(decide() == as<BoolNode>(other).decide());
    }
    SymNode ne(const SymNode& other) override {
        return wrap_bool(decide() != as<BoolNode>(other).decide());
    }

  private:
    Kind kind_ = Kind::Constant;
    bool truth_ = false;
    Relation relation_ = Relation::Eq;
    Expr left_, right_;
    SymNode a_, b_;
};

/// A float: one computed from sizes is a number, since sizes are specialised on the way; one that
/// is an input has contents, and arithmetic on it (which PyTorch's own code does, not the
/// program's) needs the number.
class FloatNode final : public Node {
  public:
    FloatNode(Env env, double value, at::Tensor contents = {})
        : Node(std::move(env)), value_(value), contents_(std::move(contents)) {}
    const at::Tensor& contents() const { return contents_; }
    bool is_float() override { return true; }
    bool is_constant() override { return false; }
    bool is_symbolic() override { return true; }
    double guard_float(const char*, int64_t) override { return fixed(); }
    std::string str() override { return std::to_string(value_); }
    SymNode sym_float() override { return clone(); }
    SymNode neg() override { return wrap_float(-fixed()); }
    SymNode floor() override { return wrap_int(static_cast<std::int64_t>(std::floor(fixed()))); }
    SymNode ceil() override { return wrap_int(static_cast<std::int64_t>(std::ceil(fixed()))); }
    SymNode add(const SymNode& o) override { return wrap_float(fixed() + of(o)); }
    SymNode sub(const SymNode& o) override { return wrap_float(fixed() - of(o)); }
    SymNode mul(const SymNode& o) override { return wrap_float(fixed() * of(o)); }
    SymNode truediv(const SymNode& o) override { return wrap_float(fixed() / of(o)); }
    SymNode pow(const SymNode& o) override { return wrap_float(std::pow(fixed(), of(o))); }
    SymNode sym_min(const SymNode& o) override { return wrap_float(std::min(fixed(), of(o))); }
    SymNode sym_max(const SymNode& o) override { return wrap_float(std::max(fixed(), of(o))); }
    SymNode eq(const SymNode& o) override { return wrap_bool(fixed() == of(o)); }
    SymNode ne(const SymNode& o) override { return wrap_bool(fixed() != of(o)); }
    SymNode lt(const SymNode& o) override { return wrap_bool(fixed() < of(o)); }
    SymNode le(const SymNode& o) override { return wrap_bool(fixed() <= of(o)); }
    SymNode gt(const SymNode& o) override { return wrap_bool(fixed() > of(o)); }
    SymNode ge(const SymNode& o) override { return wrap_bool(fixed() >= of(o)); }

  private:
    double fixed() const {
        if (contents_.defined()) (void)env_->fix_float(contents_);
        return value_;
    }
    static double of(const SymNode& node);
    double value_;
    at::Tensor contents_;
};

class SizeNode final : public Node {
  public:
    SizeNode(Env env, Expr expr) : Node(std::move(env)), expr_(expr) {}
    Expr expr() const { return expr_; }

    bool is_int() override { return true; }
    bool is_constant() override { return expr_.is_constant(); }
    bool is_symbolic() override { return !expr_.is_constant(); }
    std::optional<int64_t> constant_int() override { return maybe_as_int(); }
    std::optional<int64_t> maybe_as_int() override {
        if (expr_.is_constant()) return expr_.constant();
        return std::nullopt;
    }
    int64_t guard_int(const char*, int64_t) override { return env_->specialise(expr_); }
    int64_t int_() override { return env_->specialise(expr_); }
    std::string str() override { return to_string(expr_); }

    SymNode add(const SymNode& o) override { return make(expr_ + of(o)); }
    SymNode sub(const SymNode& o) override { return make(expr_ - of(o)); }
    SymNode mul(const SymNode& o) override { return make(expr_ * of(o)); }
    SymNode neg() override { return make(-expr_); }
    SymNode floor() override { return clone(); }
    SymNode ceil() override { return clone(); }
    SymNode floordiv(const SymNode& o) override { return make(floor_div(expr_, divisor(o))); }
    SymNode mod(const SymNode& o) override { return make(ingot::mod(expr_, divisor(o))); }
    SymNode sym_min(const SymNode& o) override { return make(min(expr_, of(o))); }
    SymNode sym_max(const SymNode& o) override { return make(max(expr_, of(o))); }
    SymNode truediv(const SymNode& o) override {
        return wrap_float(static_cast<double>(env_->specialise(expr_)) /
                          static_cast<double>(env_->specialise(of(o))));
    }
    SymNode pow(const SymNode& o) override {
        const std::int64_t exponent = env_->specialise(of(o));
        if (exponent < 0)
            return wrap_float(std::pow(static_cast<double>(env_->specialise(expr_)),
                                       static_cast<double>(exponent)));
        Expr result = 1;
        for (std::int64_t i = 0; i < exponent; ++i) result *= expr_;
        return make(result);
    }
    SymNode sym_float() override {
        return wrap_float(static_cast<double>(env_->specialise(expr_)));
    }

    SymNode eq(const SymNode& o) override { return relation(Relation::Eq, expr_, of(o)); }
    SymNode ne(const SymNode& o) override { return relation(Relation::Ne, expr_, of(o)); }
    SymNode lt(const SymNode& o) override { return relation(Relation::Lt, expr_, of(o)); }
    SymNode le(const SymNode& o) override { return relation(Relation::Le, expr_, of(o)); }
    SymNode gt(const SymNode& o) override { return relation(Relation::Lt, of(o), expr_); }
    SymNode ge(const SymNode& o) override { return relation(Relation::Le, of(o), expr_); }

    SymNode is_contiguous(c10::ArrayRef<SymNode> sizes, c10::ArrayRef<SymNode> strides) override {
        const auto s = ints(sizes), t = ints(strides);
        c10::SymInt count = 1;
        for (const c10::SymInt& n : s) count *= n;
        return wrap_bool(c10::_compute_contiguous<c10::SymInt>(s, t, count));
    }
    SymNode is_channels_last_contiguous_2d(c10::ArrayRef<SymNode> sizes,
                                           c10::ArrayRef<SymNode> strides) override {
        return wrap_bool(
            c10::_compute_channels_last_contiguous_2d<c10::SymInt>(ints(sizes), ints(strides)));
    }
    SymNode is_channels_last_contiguous_3d(c10::ArrayRef<SymNode> sizes,
                                           c10::ArrayRef<SymNode> strides) override {
        return wrap_bool(
            c10::_compute_channels_last_contiguous_3d<c10::SymInt>(ints(sizes), ints(strides)));
    }
    SymNode is_channels_last_strides_2d(c10::ArrayRef<SymNode> sizes,
                                        c10::ArrayRef<SymNode> strides) override {
        return wrap_bool(c10::is_channels_last_strides_2d<c10::SymInt>(ints(sizes), ints(strides)));
    }
    SymNode is_channels_last_strides_3d(c10::ArrayRef<SymNode> sizes,
                                        c10::ArrayRef<SymNode> strides) override {
        return wrap_bool(c10::is_channels_last_strides_3d<c10::SymInt>(ints(sizes), ints(strides)));
    }
    SymNode is_non_overlapping_and_dense(c10::ArrayRef<SymNode> sizes,
                                         c10::ArrayRef<SymNode> strides) override {
        return wrap_bool(is_dense({ints(sizes), ints(strides)}));
    }

  private:
    static Expr of(const SymNode& node) { return as<SizeNode>(node).expr(); }
    /// A divisor must be known not to be 0, by a guard if need be.
    Expr divisor(const SymNode& node) const {
        Expr e = of(node);
        if (env_->decide(Relation::Eq, e, 0)) throw UserError("division of a size by zero");
        return e;
    }
    SymNode make(Expr e) const { return c10::make_intrusive<SizeNode>(env_, e); }
    SymNode relation(Relation r, Expr left, Expr right) const {
        return c10::make_intrusive<BoolNode>(env_, r, left, right);
    }
    static SymInts ints(c10::ArrayRef<SymNode> nodes) {
        SymInts out;
        for (const SymNode& n : nodes) out.push_back(c10::SymInt(n));
        return out;
    }
    Expr expr_;
};

SymNode Node::wrap_int(int64_t number) { return c10::make_intrusive<SizeNode>(env_, Expr(number)); }
SymNode Node::wrap_float(double number) { return c10::make_intrusive<FloatNode>(env_, number); }
SymNode Node::wrap_bool(bool truth) { return c10::make_intrusive<BoolNode>(env_, truth); }

double FloatNode::of(const SymNode& node) {
    if (auto* f = dynamic_cast<FloatNode*>(node.get())) return f->fixed();
    const SizeNode& size = as<SizeNode>(node);
    return static_cast<double>(size.env()->specialise(size.expr()));
}

std::optional<bool> BoolNode::known() const {
    switch (kind_) {
        case Kind::Constant:
            return truth_;
        case Kind::Relation:
            return std::nullopt;
        case Kind::Not:
            if (auto a = as<BoolNode>(a_).known()) return !*a;
            return std::nullopt;
        case Kind::And:
        case Kind::Or: {
            const bool decisive = kind_ == Kind::Or;
            auto a = as<BoolNode>(a_).known(), b = as<BoolNode>(b_).known();
            if (a == decisive || b == decisive) return decisive;
            if (a && b) return !decisive;
            return std::nullopt;
        }
    }
    return std::nullopt;
}

bool BoolNode::decide() const {
    if (auto truth = known()) return *truth;
    switch (kind_) {
        case Kind::Relation:
            return env_->decide(relation_, left_, right_);
        case Kind::Not:
            return !as<BoolNode>(a_).decide();
        case Kind::And:
            return as<BoolNode>(a_).decide() && as<BoolNode>(b_).decide();
        case Kind::Or:
            return as<BoolNode>(a_).decide() || as<BoolNode>(b_).decide();
        case Kind::Constant:
            break;
    }
    return truth_;
}

std::string BoolNode::str() {
    switch (kind_) {
        case Kind::Constant:
            return truth_ ? "True" : "False";
        case Kind::Not:
            return std::string("not (").append(a_->str()).append(")");
        case Kind::And:
            return std::string("(").append(a_->str()).append(") and (").append(b_->str()).append(
                ")");
        case Kind::Or:
            return std::string("(").append(a_->str()).append(") or (").append(b_->str()).append(
                ")");
        case Kind::Relation:
            break;
    }
    static constexpr const char* kSigns[] = {" == ", " != ", " < ", " <= "};
    return to_string(left_).append(kSigns[static_cast<int>(relation_)]).append(to_string(right_));
}

}  // namespace

Expr SymbolicSizes::symbol(const std::string& name, std::int64_t hint, Range range) {
    if (hint < range.lo || hint > range.hi)
        throw UserError("the size " + name + " is " + std::to_string(hint) +
                        ", outside its declared range");
    const Expr s = pool_->symbol(name, range);
    const auto [it, made] = hints_.emplace(s.node(), hint);
    if (!made && it->second != hint)
        throw UserError("the size " + name + " has two values in the example");
    return s;
}

c10::SymInt SymbolicSizes::wrap(Expr e) {
    if (e.is_constant()) return e.constant();
    return c10::SymInt(SymNode(c10::make_intrusive<SizeNode>(shared_from_this(), e)));
}

c10::SymFloat SymbolicSizes::wrap(const at::Tensor& contents, double hint) {
    floats_.emplace(contents.unsafeGetTensorImpl(), Float{hint, false});
    return c10::SymFloat(
        SymNode(c10::make_intrusive<FloatNode>(shared_from_this(), hint, contents)));
}

bool SymbolicSizes::is_fixed(const at::Tensor& contents) const {
    const auto found = floats_.find(contents.unsafeGetTensorImpl());
    return found != floats_.end() && found->second.fixed;
}

std::optional<double> SymbolicSizes::fix_float(const at::Tensor& contents) {
    const auto found = floats_.find(contents.unsafeGetTensorImpl());
    if (found == floats_.end()) return std::nullopt;
    found->second.fixed = true;
    return found->second.hint;
}

SymInts SymbolicSizes::wrap(const Sizes& sizes) {
    SymInts out;
    out.reserve(sizes.size());
    for (Expr e : sizes) out.push_back(wrap(e));
    return out;
}

std::int64_t SymbolicSizes::hint(Expr e) const {
    if (e.is_constant()) return e.constant();
    return evaluate(e, [&](Expr symbol) {
        const auto found = hints_.find(symbol.node());
        if (found == hints_.end())
            throw InternalError("the size " + to_string(symbol) + " is of no input");
        return found->second;
    });
}

bool SymbolicSizes::decide(Relation relation, Expr left, Expr right) {
    if (auto truth = known(relation, left, right)) return *truth;
    const bool truth = holds(relation, hint(left), hint(right));
    switch (relation) {
        case Relation::Eq:
            add_guard(truth ? Relation::Eq : Relation::Ne, left, right);
            break;
        case Relation::Ne:
            add_guard(truth ? Relation::Ne : Relation::Eq, left, right);
            break;
        case Relation::Lt:
            truth ? add_guard(Relation::Lt, left, right) : add_guard(Relation::Le, right, left);
            break;
        case Relation::Le:
            truth ? add_guard(Relation::Le, left, right) : add_guard(Relation::Lt, right, left);
            break;
    }
    return truth;
}

void SymbolicSizes::require_equal(std::span<const std::pair<Expr, Expr>> pairs) {
    for (const auto& [a, b] : pairs)
        if (!decide(Relation::Eq, a, b))
            throw UserError("sizes differ: " + to_string(a) + " and " + to_string(b));
}

std::int64_t SymbolicSizes::specialise(Expr e) {
    if (e.is_constant()) return e.constant();
    const std::int64_t value = hint(e);
    add_guard(Relation::Eq, e, Expr(value));
    specialised_.push_back(e);
    return value;
}

void SymbolicSizes::add_guard(Relation relation, Expr left, Expr right) {
    for (const SizeGuard& g : guards_)
        if (g.relation == relation && g.left == left && g.right == right) return;
    guards_.push_back({relation, left, right, origin_ == nullptr ? std::string() : *origin_});
}

Expr unwrap(const c10::SymInt& value) {
    if (auto number = value.maybe_as_int()) return *number;
    auto* node = dynamic_cast<SizeNode*>(value.toSymNodeImplUnowned());
    if (node == nullptr) throw NotSupported("a symbolic number that is not the recorder's");
    return node->expr();
}

at::Tensor contents(const c10::SymFloat& value) {
    if (!value.is_symbolic()) return {};
    auto* node = dynamic_cast<FloatNode*>(value.toSymNodeImplUnowned());
    return node == nullptr ? at::Tensor() : node->contents();
}

Sizes unwrap(c10::SymIntArrayRef values) {
    Sizes out;
    out.reserve(values.size());
    for (const c10::SymInt& v : values) out.push_back(unwrap(v));
    return out;
}

bool same(const c10::SymInt& a, const c10::SymInt& b) {
    if (!a.is_heap_allocated() && !b.is_heap_allocated())
        return a.as_int_unchecked() == b.as_int_unchecked();
    return unwrap(a) == unwrap(b);
}
bool same(c10::SymIntArrayRef a, c10::SymIntArrayRef b) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i)
        if (!same(a[i], b[i])) return false;
    return true;
}

std::int64_t concrete(const c10::SymInt& value) { return value.guard_int(__FILE__, __LINE__); }

Ints concrete(c10::SymIntArrayRef values) {
    Ints out;
    out.reserve(values.size());
    for (const c10::SymInt& v : values) out.push_back(concrete(v));
    return out;
}

}  // namespace ingot::trace
