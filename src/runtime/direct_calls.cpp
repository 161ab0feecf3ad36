// See direct_calls.h; part of program.h's Instance.
#include "runtime/direct_calls.h"

#include <algorithm>

#include "runtime/program.h"

namespace ingot::runtime {
namespace {

constexpr int kRunsBefore = 2;     // so that libraries have made what they make once
constexpr int kMostLearnings = 3;  // of an instance: on other streams, with other settings
constexpr int kTurns = 3;          // recordings of a call, of which two must agree
constexpr int kMostRefused = 3;    // calls that break a recording
/// A call that touches more keeps the GPU busy for longer than its library takes, and its
/// library's own memory would stay.
constexpr std::int64_t kMostTouched = std::int64_t{64} << 20;
constexpr std::int64_t kMostPlaced = std::int64_t{128} << 20;
constexpr std::int64_t kMostMade = std::int64_t{16} << 20;  // kTurns times while learning

// Addresses that no memory has: far apart, and moved by another distance each from turn to turn.
constexpr std::uint64_t kFirstPlace = std::uint64_t{1} << 44, kPlace = std::uint64_t{1} << 36,
                        kMove = (std::uint64_t{1} << 31) + (std::uint64_t{1} << 20);
constexpr std::uint64_t kMostPlaces = 256, kLowBits = 511;

/// One recording of a call.
struct Turn {
    std::size_t first = 0, last = 0;  // of the operations
    std::vector<cuda::ArgumentPlace> places;
    bool makes_results = false, takes_more = false;  // memory: for results, and besides

    /// What a call has worked in and given back may become its result. An address in the one would
    /// then be taken for one in the other. What a single operation reads and writes is there all at
    /// once.
    bool may_reuse() const { return makes_results && takes_more && last - first > 1; }
};

struct StepRefused {
    std::size_t step;
};

}  // namespace

/// Null if it may be tried.
const char* Instance::why_not_direct(const ExternStepCall& step) const {
    if (!step.call->repeats()) return "may do something else another time";
    std::int64_t touched = 0, made = 0;
    const std::uint32_t count = step.input_count + step.output_count;
    for (std::uint32_t i = 0; i < count; ++i) {
        const std::int32_t b = argument_buffers_[step.inputs + i];
        touched += buffers_[b].layout.bytes;
        if (i >= step.input_count && makes_own_memory(b)) made += buffers_[b].layout.bytes;
        if (buffers_[b].layout.bytes == 0) return "is empty";
    }
    if (touched > kMostTouched || made > kMostMade) return "touches much memory";
    return count > kMostPlaces ? "has many arguments" : nullptr;
}

std::shared_ptr<const DirectCalls> Instance::direct() const {
    const std::lock_guard lock(direct_mutex_);
    return direct_;
}

std::shared_ptr<const DirectCalls> Instance::direct_calls(Context& context) const {
    if (externs_.empty() || !cuda::reads_recorded_work(*gpu_)) return nullptr;
    // Whoever meets another thread here leaves its calls to the libraries.
    const std::unique_lock lock(direct_mutex_, std::try_to_lock);
    if (!lock) return nullptr;
    if (direct_runs_ < kRunsBefore) {
        ++direct_runs_;
        return nullptr;
    }
    void* const stream = device_->stream();
    const std::uint64_t settings = device_->settings();
    // What is being recorded is somebody's graph, which may run beside this stream's work.
    if (cuda::is_recording(*gpu_, stream)) return nullptr;
    if (!direct_ || direct_->stream != stream || direct_->settings != settings) {
        if (direct_learnings_ == kMostLearnings) return nullptr;
        ++direct_learnings_;
        std::shared_ptr<const DirectCalls> learned = learn_direct_calls(context, stream, settings);
        if (!learned) return nullptr;
        direct_ = std::move(learned);
    }
    if (context.direct_ != direct_) {
        context.direct_ = direct_;
        context.results_base_ = nullptr;
        context.direct_launches_.clear();
        for (const std::optional<cuda::DirectCall>& c : direct_->calls) {
            auto& launches = context.direct_launches_.emplace_back();
            if (c) launches.emplace(*c);
        }
    }
    return direct_;
}

// The largest first, each as low as those that live at the same time allow.
void Instance::place_results(DirectCalls& direct) const {
    struct Life {
        std::int32_t buffer;
        std::size_t born, dies;
        std::int64_t bytes, at;
    };
    direct.placed.assign(buffers_.size(), false);
    std::vector<std::size_t> born(buffers_.size(), steps_.size());
    std::vector<Life> lives;
    for (std::size_t s = 0; s < steps_.size(); ++s) {
        const StepRef& step = steps_[s];
        if (step.is_extern && direct.calls[step.index]) {
            const ExternStepCall& call = externs_[step.index];
            for (std::uint32_t i = 0; i < call.output_count; ++i) {
                const std::int32_t b = argument_buffers_[call.outputs + i];
                if (makes_own_memory(b)) born[b] = s;
            }
        }
        for (std::int32_t b : step.drops)
            if (born[b] <= s)
                lives.push_back({b, born[b], s, (buffers_[b].layout.bytes + 511) / 512 * 512, 0});
    }
    std::ranges::stable_sort(lives, std::ranges::greater{}, &Life::bytes);
    std::int64_t end = 0;
    for (std::size_t i = 0; i < lives.size(); ++i) {
        Life& l = lives[i];
        std::vector<const Life*> there;
        for (std::size_t o = 0; o < i; ++o)
            if (lives[o].born <= l.dies && l.born <= lives[o].dies) there.push_back(&lives[o]);
        std::ranges::sort(there, {}, &Life::at);
        for (const Life* o : there)
            if (o->at < l.at + l.bytes) l.at = std::max(l.at, o->at + o->bytes);
        end = std::max(end, l.at + l.bytes);
    }
    if (end > kMostPlaced) return;
    direct.place_bytes = end;
    for (const Life& l : lives) {
        direct.places.emplace_back(l.buffer, l.at);
        direct.placed[l.buffer] = true;
    }
}

void Context::take_results(const DeviceHost& device, const DirectCalls& direct) {
    if (direct.place_bytes == 0) return;
    device_results_ = device.allocate(static_cast<std::size_t>(direct.place_bytes));
    auto* const base = static_cast<std::byte*>(device_results_.data());
    if (base == results_base_) return;
    results_base_ = base;
    for (const auto& [buffer, at] : direct.places) patch(buffer, base + at);
}

std::shared_ptr<const DirectCalls> Instance::learn_direct_calls(const Context& context,
                                                                void* stream,
                                                                std::uint64_t settings) const {
    auto learned = std::make_shared<DirectCalls>();
    learned->stream = stream;
    learned->settings = settings;
    learned->calls.resize(externs_.size());
    std::vector<bool> wanted(externs_.size(), false);
    for (const StepRef& step : steps_) {  // frozen ones run once
        if (!step.is_extern) continue;
        const char* const why = why_not_direct(externs_[step.index]);
        wanted[step.index] = why == nullptr;
        if (why != nullptr) ++learned->left[why];
    }
    if (std::ranges::count(wanted, true) == 0) return learned;

    std::vector<std::vector<Turn>> turns(externs_.size());
    const auto record_turn = [&](std::size_t index, int turn,
                                 std::vector<std::shared_ptr<void>>& kept) {
        const ExternStepCall& step = externs_[index];
        const std::uint32_t count = step.input_count + step.output_count;
        std::vector<void*> arguments;
        std::vector<cuda::ArgumentPlace> places;
        std::vector<std::int32_t> roots;  // by place that is made up
        for (std::uint32_t i = 0; i < count; ++i) {
            const std::int32_t b = argument_buffers_[step.inputs + i];
            if (i >= step.input_count && makes_own_memory(b)) {
                arguments.push_back(nullptr);
                places.push_back({0, static_cast<std::uint64_t>(buffers_[b].layout.bytes), false});
                continue;
            }
            auto at = std::ranges::find(roots, root(b));
            const auto place = static_cast<std::uint64_t>(at - roots.begin());
            if (at == roots.end()) roots.push_back(root(b));
            // As well aligned as the argument, whose block it may begin somewhere in.
            const auto low = reinterpret_cast<std::uint64_t>(context.table_[root(b)]) & kLowBits;
            const auto within =
                static_cast<std::uint64_t>(buffers_[b].base < 0 ? 0 : buffers_[b].offset);
            const std::uint64_t address =
                kFirstPlace + place * kPlace + (place + 1) * kMove * turn + low + within;
            arguments.push_back(reinterpret_cast<void*>(address));
            places.push_back({address, static_cast<std::uint64_t>(buffers_[b].layout.bytes), true});
        }
        void* const own = device_->stream();
        Turn t;
        const auto made = std::ranges::count(arguments, static_cast<void*>(nullptr));
        const std::optional<std::int64_t> taken_before = device_->allocations();
        t.first = cuda::recorded_operations(*gpu_, own);
        std::vector<std::shared_ptr<void>> owners(step.output_count);
        const std::span all(arguments);
        step.call->run(all.first(step.input_count), all.subspan(step.input_count), owners);
        t.last = cuda::recorded_operations(*gpu_, own);
        const std::optional<std::int64_t> taken = device_->allocations();
        t.makes_results = made > 0;
        t.takes_more = !taken_before || !taken || *taken - *taken_before > made;
        for (std::uint32_t i = 0; i < count; ++i)
            places[i].address = reinterpret_cast<std::uint64_t>(arguments[i]);
        t.places = std::move(places);
        turns[index].push_back(std::move(t));
        kept.insert(kept.end(), owners.begin(), owners.end());
    };
    const auto work = [&] {
        for (std::size_t index = 0; index < externs_.size(); ++index) {
            turns[index].clear();
            if (!wanted[index]) continue;
            std::vector<std::shared_ptr<void>> kept;  // results: the next turn's lie elsewhere
            try {
                for (int turn = 0; turn < kTurns; ++turn) record_turn(index, turn, kept);
            } catch (const std::exception&) {
                throw StepRefused{index};
            }
        }
    };
    const auto read = [&](void* graph) {
        const auto operations = cuda::read_recorded(*gpu_, graph);
        if (!operations) {
            ++learned->left["together do more than one thing at once"];
            return;
        }
        const std::span all(*operations);
        for (std::size_t index = 0; index < externs_.size(); ++index) {
            if (!wanted[index]) continue;
            const auto of = [&](const Turn& t) { return all.subspan(t.first, t.last - t.first); };
            const std::vector<Turn>& t = turns[index];
            for (std::size_t b = t.size(); b-- > 1 && !learned->calls[index];)
                for (std::size_t a = b; a-- > 0 && !learned->calls[index];) {
                    if (t[a].may_reuse() || t[b].may_reuse()) continue;
                    if (auto words =
                            cuda::find_addresses(of(t[b]), of(t[a]), t[b].places, t[a].places))
                        learned->calls[index].emplace(std::vector(of(t[b]).begin(), of(t[b]).end()),
                                                      std::move(*words), t[b].places);
                }
            if (learned->calls[index]) continue;
            if (t.back().may_reuse()) {
                ++learned->left["may make its results where it has worked"];
                continue;
            }
            const bool other = std::ranges::any_of(of(t[0]), [](const auto& o) {
                return o.kind == cuda::RecordedOperation::Kind::Other;
            });
            ++learned->left[other ? "does more than start kernels" : "differs from time to time"];
        }
    };
    for (int refused = 0; refused <= kMostRefused; ++refused) {
        try {
            learned->memory = device_->record(work, read);
            place_results(*learned);
            if (!learned->memory) {
                ++learned->left["cannot be recorded on this stream"];
            }
            return learned;
        } catch (const StepRefused& r) {
            wanted[r.step] = false;
            ++learned->left["cannot be recorded"];
        } catch (const std::exception&) {
            return nullptr;
        }
    }
    return nullptr;
}

bool Instance::run_direct(std::uint32_t index, Context& context, const DirectCalls& direct,
                          void* stream) const {
    const std::optional<cuda::DirectCall>& call = direct.calls[index];
    if (!call) return false;
    const ExternStepCall& step = externs_[index];
    const std::span arguments(context.arguments_.data() + step.inputs,
                              step.input_count + step.output_count);
    const std::span outputs = arguments.subspan(step.input_count);
    const std::int32_t* buffers = argument_buffers_.data() + step.outputs;
    bool makes = false;
    for (std::uint32_t i = 0; i < step.output_count; ++i) {
        if (!makes_own_memory(buffers[i])) continue;
        if (context.results_base_ != nullptr && direct.placed[buffers[i]]) continue;
        outputs[i] = nullptr;
        makes = true;
    }
    if (makes) step.call->make_outputs(outputs, {context.step_owners_.data(), step.output_count});
    if (!call->serves(arguments)) {
        for (auto& owner : context.step_owners_) owner.reset();
        context.results_base_ = nullptr;  // the library's results lie elsewhere
        return false;
    }
    if (makes) adopt_results(step, context);
    const std::lock_guard turn(direct.memory->turn);
    call->run(*gpu_, *context.direct_launches_[index], arguments, stream);
    return true;
}

}  // namespace ingot::runtime
