// See recorded_work.h.
#include "runtime/cuda/recorded_work.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "runtime/cuda/driver_table.h"

namespace ingot::runtime::cuda {

namespace {

// CU_GRAPH_NODE_TYPE_*, CU_STREAM_CAPTURE_STATUS_*, CU_LAUNCH_PARAM_*.
constexpr int kKernelNode = 0, kFillNode = 2;
constexpr int kCapturing = 1;
constexpr std::uintptr_t kParamEnd = 0, kParamPointer = 1, kParamSize = 2;
// CU_LAUNCH_ATTRIBUTE_*: those that change what a kernel does or how fast, and what they are when
// nobody has set them.
constexpr int kCooperative = 2, kClusterDimension = 4, kClusterScheduling = 5,
              kPreferredCluster = 11;
constexpr int kAttributes[] = {kCooperative, kClusterDimension, kClusterScheduling,
                               kPreferredCluster};
constexpr std::size_t kAttributeBytes = 64;
constexpr std::uint64_t kAlignment = 512;  // of PyTorch's allocator
/// How far outside an argument an address may point, as paddings make it do.
constexpr std::int64_t kSlack = std::int64_t{1} << 30;

using Kind = RecordedOperation::Kind;

bool take_parameters(const DriverApi& api, const KernelNode& node, RecordedOperation& out) {
    if (node.parameters == nullptr) {
        // All of them in one piece.
        if (node.extra == nullptr) return true;
        const void* piece = nullptr;
        std::size_t bytes = 0;
        for (void** e = node.extra; reinterpret_cast<std::uintptr_t>(*e) != kParamEnd; e += 2) {
            const auto key = reinterpret_cast<std::uintptr_t>(*e);
            if (key == kParamPointer) piece = e[1];
            if (key == kParamSize) bytes = *static_cast<std::size_t*>(e[1]);
        }
        if (piece == nullptr) return false;
        const auto* begin = static_cast<const std::byte*>(piece);
        for (std::size_t i = 0;; ++i) {
            std::size_t at = 0, size = 0;
            if (api.function_parameter(out.function, i, &at, &size) != 0) break;
            if (at + size > bytes) return false;
            out.parameters.push_back(static_cast<std::uint32_t>(at));
        }
        out.bytes.assign(begin, begin + bytes);
        return true;
    }
    for (std::size_t i = 0;; ++i) {
        std::size_t at = 0, size = 0;
        if (api.function_parameter(out.function, i, &at, &size) != 0) break;
        out.parameters.push_back(static_cast<std::uint32_t>(at));
        out.bytes.resize(std::max(out.bytes.size(), at + size));
        std::memcpy(out.bytes.data() + at, node.parameters[i], size);
    }
    return true;
}

bool take_attributes(const DriverApi& api, Handle node, RecordedOperation& out) {
    for (int id : kAttributes) {
        alignas(8) std::array<unsigned, kAttributeBytes / sizeof(unsigned)> value{};
        if (api.kernel_node_attribute(node, id, value.data()) != 0) {
            // A driver that does not know the attribute has no kernel with it.
            if (id == kPreferredCluster) continue;
            return false;
        }
        const std::array<unsigned, 3> first{value[0], value[1], value[2]};
        const bool single = id != kCooperative && id != kClusterScheduling &&
                            first == std::array<unsigned, 3>{1, 1, 1};
        if (first[0] == 0 || single) continue;
        out.attributes.push_back({id, first});
    }
    return true;
}

RecordedOperation read_node(const DriverApi& api, Handle node) {
    RecordedOperation out;
    int type = -1;
    api.require(api.node_type(node, &type), "reading recorded work");
    if (type == kFillNode) {
        FillNode fill{};
        api.require(api.fill_node(node, &fill), "reading recorded work");
        if (fill.height > 1) return out;
        out.kind = Kind::Fill;
        out.bytes.resize(sizeof fill);
        std::memcpy(out.bytes.data(), &fill, sizeof fill);
    } else if (type == kKernelNode) {
        KernelNode kernel{};
        api.require(api.kernel_node(node, &kernel), "reading recorded work");
        out.function = kernel.function;
        if (out.function == nullptr && api.kernel_function(&out.function, kernel.kernel) != 0)
            return out;
        std::copy_n(kernel.grid, 3, out.grid.begin());
        std::copy_n(kernel.block, 3, out.block.begin());
        out.shared = kernel.shared;
        if (take_parameters(api, kernel, out) && take_attributes(api, node, out))
            out.kind = Kind::Kernel;
    }
    return out;
}

/// The argument that a word follows which was `a` and then `b`; -1: none or several.
std::int32_t argument_of(std::uint64_t a, std::uint64_t b, std::span<const ArgumentPlace> first,
                         std::span<const ArgumentPlace> second) {
    std::int32_t found = -1, near = -1;
    for (std::size_t i = 0; i < first.size(); ++i) {
        const ArgumentPlace& p = first[i];
        if (p.address == 0 || b - a != second[i].address - p.address) continue;
        const auto offset = static_cast<std::int64_t>(a - p.address);
        const auto bytes = static_cast<std::int64_t>(p.bytes);
        if (offset >= 0 && offset < bytes) {
            if (found < 0) found = static_cast<std::int32_t>(i);
        } else if (p.alone && offset >= -kSlack && offset < bytes + kSlack) {
            if (near < 0) near = static_cast<std::int32_t>(i);
        }
    }
    return found >= 0 ? found : near;
}

bool contains(std::span<const ArgumentPlace> places, std::uint64_t address) {
    return std::ranges::any_of(
        places, [&](const ArgumentPlace& p) { return address - p.address < p.bytes; });
}

bool alike(const RecordedOperation& a, const RecordedOperation& b) {
    return a.kind == b.kind && a.kind != Kind::Other && a.function == b.function &&
           a.grid == b.grid && a.block == b.block && a.shared == b.shared &&
           a.attributes == b.attributes && a.parameters == b.parameters &&
           a.bytes.size() == b.bytes.size();
}

std::uint64_t word(const std::vector<std::byte>& bytes, std::size_t at) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data() + at, std::min(sizeof value, bytes.size() - at));
    return value;
}

}  // namespace

bool reads_recorded_work(const Gpu& gpu) { return gpu.api().reads_graphs; }

bool is_recording(const Gpu& gpu, Handle stream) {
    int status = 0;
    return gpu.api().stream_is_capturing(stream, &status) != 0 || status != 0;
}

std::size_t recorded_operations(const Gpu& gpu, Handle stream) {
    const DriverApi& api = gpu.api();
    int status = 0;
    std::uint64_t id = 0;
    Handle graph = nullptr;
    const Handle* dependencies = nullptr;
    const EdgeData* edges = nullptr;
    std::size_t count = 0;
    api.require(
        api.stream_capture_info(stream, &status, &id, &graph, &dependencies, &edges, &count),
        "recording a call");
    if (status != kCapturing) throw Error("a call cannot be recorded");
    api.require(api.graph_nodes(graph, nullptr, &count), "recording a call");
    return count;
}

std::optional<std::vector<RecordedOperation>> read_recorded(const Gpu& gpu, Handle graph) {
    const DriverApi& api = gpu.api();
    std::size_t count = 0;
    api.require(api.graph_nodes(graph, nullptr, &count), "reading recorded work");
    std::vector<Handle> nodes(count);
    api.require(api.graph_nodes(graph, nodes.data(), &count), "reading recorded work");
    // Each behind the one it depends on.
    std::unordered_map<Handle, std::pair<Handle, bool>> next;
    for (Handle node : nodes) {
        Handle before[2] = {};
        EdgeData edges[2] = {};
        std::size_t depends = std::size(before);
        api.require(api.node_dependencies(node, before, edges, &depends), "reading recorded work");
        if (depends > 1) return std::nullopt;
        // 1 and 1: programmatic, from where a kernel lets the next one start.
        const bool overlaps = edges[0].type == 1 && edges[0].from_port == 1;
        if (!next.emplace(before[0], std::pair(node, overlaps)).second) return std::nullopt;
    }
    std::vector<RecordedOperation> operations;
    operations.reserve(count);
    for (auto at = next.find(nullptr); at != next.end(); at = next.find(at->second.first)) {
        operations.push_back(read_node(api, at->second.first));
        operations.back().overlaps = at->second.second;
    }
    if (operations.size() != count) return std::nullopt;
    return operations;
}

std::optional<std::vector<AddressWord>> find_addresses(
    std::span<const RecordedOperation> first, std::span<const RecordedOperation> second,
    std::span<const ArgumentPlace> first_places, std::span<const ArgumentPlace> second_places) {
    if (first.size() != second.size() || first_places.size() != second_places.size())
        return std::nullopt;
    std::vector<AddressWord> words;
    for (std::size_t o = 0; o < first.size(); ++o) {
        const RecordedOperation &a = first[o], &b = second[o];
        if (!alike(a, b)) return std::nullopt;
        for (std::size_t at = 0; at < a.bytes.size(); at += sizeof(std::uint64_t)) {
            const std::uint64_t x = word(a.bytes, at), y = word(b.bytes, at);
            if (x == y) {
                // An argument's address of an earlier call, which somebody keeps.
                if (contains(first_places, x) || contains(second_places, x)) return std::nullopt;
                continue;
            }
            if (a.bytes.size() - at < sizeof x) return std::nullopt;
            const std::int32_t argument = argument_of(x, y, first_places, second_places);
            if (argument < 0) return std::nullopt;
            words.push_back({static_cast<std::uint32_t>(o), static_cast<std::uint32_t>(at),
                             static_cast<std::uint32_t>(argument),
                             static_cast<std::int64_t>(x - first_places[argument].address)});
        }
    }
    return words;
}

DirectCall::DirectCall(std::vector<RecordedOperation> operations, std::vector<AddressWord> words,
                       std::span<const ArgumentPlace> places)
    : operations_(std::move(operations)), words_(std::move(words)) {
    for (const ArgumentPlace& p : places) low_bits_.push_back(p.address % kAlignment);
}

DirectCall::Launches::Launches(const DirectCall& call) {
    for (const RecordedOperation& o : call.operations_) {
        std::vector<std::byte>& bytes = bytes_.emplace_back(o.bytes);
        std::vector<void*>& parameters = parameters_.emplace_back();
        for (std::uint32_t at : o.parameters) parameters.push_back(bytes.data() + at);
    }
}

bool DirectCall::serves(std::span<void* const> arguments) const {
    for (std::size_t i = 0; i < arguments.size(); ++i)
        if (reinterpret_cast<std::uint64_t>(arguments[i]) % kAlignment != low_bits_[i])
            return false;
    return true;
}

void DirectCall::run(const Gpu& gpu, Launches& launches, std::span<void* const> arguments,
                     Handle stream) const {
    if (!std::ranges::equal(launches.arguments_, arguments)) {
        for (const AddressWord& w : words_) {
            const std::uint64_t address = reinterpret_cast<std::uint64_t>(arguments[w.argument]) +
                                          static_cast<std::uint64_t>(w.offset);
            std::memcpy(launches.bytes_[w.operation].data() + w.at, &address, sizeof address);
        }
        launches.arguments_.assign(arguments.begin(), arguments.end());
    }
    const DriverApi& api = gpu.api();
    for (std::size_t i = 0; i < operations_.size(); ++i) {
        const RecordedOperation& o = operations_[i];
        if (o.kind == Kind::Fill) {
            FillNode f;
            std::memcpy(&f, launches.bytes_[i].data(), sizeof f);
            const int result =
                f.element_bytes == 1
                    ? api.fill_8(f.address, static_cast<unsigned char>(f.value), f.width, stream)
                : f.element_bytes == 2
                    ? api.fill_16(f.address, static_cast<unsigned short>(f.value), f.width, stream)
                    : api.fill_32(f.address, f.value, f.width, stream);
            api.require(result, "filling memory");
            continue;
        }
        std::array<LaunchAttribute, std::size(kAttributes) + 1> attributes;
        unsigned count = 0;
        const auto add = [&](int id, const std::array<unsigned, 3>& value) {
            LaunchAttribute& a = attributes[count++];
            std::memset(&a, 0, sizeof a);
            a.id = id;
            std::memcpy(&a.value, value.data(), sizeof value);
        };
        for (const RecordedOperation::Attribute& a : o.attributes) add(a.id, a.value);
        if (o.overlaps) add(kProgrammaticSerialization, {1, 0, 0});
        const LaunchConfig config{{o.grid[0], o.grid[1], o.grid[2]},
                                  {o.block[0], o.block[1], o.block[2]},
                                  o.shared,
                                  stream,
                                  attributes.data(),
                                  count};
        const int result =
            api.launch_kernel_ex(&config, o.function, launches.parameters_[i].data(), nullptr);
        if (result != 0) [[unlikely]]
            api.require(result, "starting a recorded kernel");
    }
}

}  // namespace ingot::runtime::cuda
