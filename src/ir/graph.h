// The tensor graph: prims in SSA form over values with element type and symbolic sizes.
//
// Meaning. A value is an immutable tensor: no aliasing, no strides of its own. Only the graph's
// border knows memory: an Input has the strides its caller promises, an Output the strides its
// caller expects, and an Output may be the new contents of an input (how in-place operators leave
// the graph). Nodes stand in an order of evaluation; effects keep that order. Pointwise arithmetic
// is IEEE on the compute type of the operands (dtype.h); with `round_intermediates` every
// reduced-float result is rounded to its type, as eager does. Reductions may be evaluated in any
// order.
//
// Built by tracing (src/trace) or parsing (parse.h), rewritten by passes, read by the scheduler. A
// Graph is a value in the sense of ownership (moves, clones); it shares its ExprPool with the
// graphs and kernels made from it.
#pragma once
#include <complex>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ir/dtype.h"
#include "ir/error.h"
#include "ir/expr.h"
#include "ir/prim.h"

namespace ingot {

enum class DeviceKind : std::uint8_t { Cpu, Cuda };
struct Device {
    DeviceKind kind = DeviceKind::Cpu;
    std::int8_t index = 0;
    friend bool operator==(const Device&, const Device&) = default;
};

/// A constant of any element type. Integers keep all 64 bits (u64 through its two's complement).
struct Scalar {
    std::variant<bool, std::int64_t, double, std::complex<double>> value = std::int64_t{0};
    Scalar() = default;
    Scalar(bool v) : value(v) {}
    Scalar(int v) : value(std::int64_t{v}) {}
    Scalar(std::int64_t v) : value(v) {}
    Scalar(double v) : value(v) {}
    Scalar(std::complex<double> v) : value(v) {}
    double to_double() const;
    std::int64_t to_int() const;
    std::complex<double> to_complex() const;
    /// Bitwise for floats, so that NaN equals itself and -0 differs from 0.
    friend bool operator==(const Scalar& a, const Scalar& b);
};

using Ints = std::vector<std::int64_t>;
using AttrValue = std::variant<bool, std::int64_t, double, Expr, Sizes, Ints, DType, Scalar,
                               std::string, std::shared_ptr<const std::vector<std::uint8_t>>>;
struct Attr {
    std::string_view key;  // points into the prims table (static storage)
    AttrValue value;
};

/// The attributes of a node, in the table's order.
class Attrs {
  public:
    Attrs() = default;
    Attrs(std::initializer_list<Attr> list) : list_(list) {}
    bool has(std::string_view key) const { return find(key) != nullptr; }
    template <class T>
    const T& get(std::string_view key) const {
        const AttrValue* v = find(key);
        if (v == nullptr) throw InternalError("attribute '" + std::string(key) + "' is missing");
        const T* typed = std::get_if<T>(v);
        if (typed == nullptr)
            throw InternalError("attribute '" + std::string(key) + "' has another type");
        return *typed;
    }
    void set(std::string_view static_key, AttrValue value);
    const std::vector<Attr>& list() const { return list_; }

  private:
    const AttrValue* find(std::string_view key) const;
    std::vector<Attr> list_;
};
bool operator==(const Attrs& a, const Attrs& b);

struct Type {
    DType dtype = DType::F32;
    Sizes sizes;
    Device device;
    int rank() const { return static_cast<int>(sizes.size()); }
    Expr numel() const { return product(sizes); }
    friend bool operator==(const Type&, const Type&) = default;
};

using ValueId = std::uint32_t;
using NodeId = std::uint32_t;
inline constexpr std::uint32_t kNone = 0xffffffffu;

struct Node {
    Prim prim;
    std::vector<ValueId> operands;
    std::vector<ValueId> results;
    Attrs attrs;
    std::string origin;  // the ATen operator and user's line it came from, for people; may be empty
};

struct Value {
    Type type;
    NodeId producer = kNone;     // kNone: an input
    std::uint32_t position = 0;  // which result of the producer, or which input
};

struct Input {
    ValueId value;
    std::string name;
    Sizes strides;        // in elements; what the caller promises
    bool frozen = false;  // a parameter or buffer: values computed from frozen inputs alone are
                          // kept between calls
};

struct Output {
    ValueId value;
    Sizes strides;  // in elements; what the caller expects
    std::int32_t writes_input =
        -1;  // >= 0: the new contents of that input (written in place after all reads)
};

/// A condition on symbolic sizes that was assumed while tracing; checked at each call with other
/// sizes.
struct SizeGuard {
    enum class Relation : std::uint8_t { Eq, Ne, Lt, Le } relation;
    Expr left, right;
    std::string reason;
};

class Graph {
  public:
    explicit Graph(std::shared_ptr<ExprPool> pool = std::make_shared<ExprPool>())
        : pool_(std::move(pool)) {}

    ExprPool& pool() const { return *pool_; }
    std::shared_ptr<ExprPool> shared_pool() const { return pool_; }

    ValueId add_input(Type type, std::string name, Sizes strides, bool frozen = false);
    void add_output(ValueId value, Sizes strides, std::int32_t writes_input = -1);
    void add_guard(SizeGuard guard) { guards_.push_back(std::move(guard)); }

    /// Appends a node; result types follow from the table and shape.cpp. Throws InternalError on
    /// operands the table forbids. For prims whose rules are Custom-by-caller (extern calls, packed
    /// prims) use add_with_types.
    NodeId add(Prim prim, std::vector<ValueId> operands, Attrs attrs = {}, std::string origin = {});
    NodeId add_with_types(Prim prim, std::vector<ValueId> operands, Attrs attrs,
                          std::vector<Type> results, std::string origin = {});
    /// add() for prims with one result; returns its value.
    ValueId emit(Prim prim, std::vector<ValueId> operands, Attrs attrs = {},
                 std::string origin = {}) {
        return node(add(prim, std::move(operands), std::move(attrs), std::move(origin))).results[0];
    }

    const std::vector<Node>& nodes() const { return nodes_; }
    const std::vector<Value>& values() const { return values_; }
    const std::vector<Input>& inputs() const { return inputs_; }
    const std::vector<Output>& outputs() const { return outputs_; }
    const std::vector<SizeGuard>& guards() const { return guards_; }
    std::vector<Input>& mutable_inputs() { return inputs_; }
    std::vector<Output>& mutable_outputs() { return outputs_; }
    Node& node(NodeId id) { return nodes_[id]; }
    const Node& node(NodeId id) const { return nodes_[id]; }
    const Type& type(ValueId v) const { return values_[v].type; }
    /// The node that makes `v`, or nullptr for an input.
    const Node* producer(ValueId v) const {
        return values_[v].producer == kNone ? nullptr : &nodes_[values_[v].producer];
    }

    /// Whether reduced floats are rounded after every prim (eager's behaviour, the default).
    bool round_intermediates = true;

  private:
    std::shared_ptr<ExprPool> pool_;
    std::vector<Node> nodes_;
    std::vector<Value> values_;
    std::vector<Input> inputs_;
    std::vector<Output> outputs_;
    std::vector<SizeGuard> guards_;
};

/// A pass rewrites by copying: it walks the old graph in order and emits into a new one. The map
/// holds, for each old value, its new one.
class Rewriter {
  public:
    explicit Rewriter(const Graph& old);
    /// Copies the node as it is (operands mapped) and maps its results.
    void copy(NodeId id);
    void map(ValueId old_value, ValueId new_value) { map_[old_value] = new_value; }
    ValueId operator()(ValueId old_value) const;
    bool mapped(ValueId old_value) const { return map_[old_value] != kNone; }
    Graph& out() { return out_; }
    /// Adds the outputs and guards and hands the new graph over.
    Graph finish();

  private:
    const Graph& old_;
    Graph out_;
    std::vector<ValueId> map_;
};

/// Result types of a prim from its operands and attributes: the one place that knows shape rules
/// (shape.cpp). Throws InternalError for operands the rules forbid and for caller-typed prims.
std::vector<Type> infer_types(Prim prim, std::span<const Type> operands, const Attrs& attrs);

/// The number of uses of each value (operands and outputs).
std::vector<int> use_counts(const Graph& graph);

}  // namespace ingot
