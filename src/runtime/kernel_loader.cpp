// See kernel_loader.h.
#include "runtime/kernel_loader.h"

#include <algorithm>
#include <deque>
#include <set>
#include <sstream>

#include "codegen/contraction/contraction.h"
#include "codegen/llvm/emit.h"
#include "ir/error.h"
#include "runtime/kernel_jobs.h"
#include "schedule/nest.h"

namespace ingot::runtime {
namespace {

/// Part of every key, beside the build's own identity (Jit::cache_key): the meaning of an entry.
constexpr std::string_view kVersion = "ingot kernels 7";
constexpr std::string_view kLaunches = "/launches";
constexpr std::string_view kShared = "/shared";  // names of shared functions, a line each

std::string launches_text(const KernelCode& code, const KernelJob& job) {
    const LaunchText over(*job.kernel, *job.pool);
    std::string text;
    for (const Launch& l : code.launches) {
        const std::string fields[] = {l.symbol, over.text(l.work), over.text(l.grain),
                                      over.text(l.scratch_bytes)};
        text += LaunchText::line(fields);
    }
    return text;
}

KernelCode parse_launches(const std::string& text, const KernelJob& job) {
    const LaunchText over(*job.kernel, *job.pool);
    KernelCode code;
    for (const auto& f : LaunchText::parse(text, 4))
        code.launches.push_back(
            {f[0], over.expression(f[1]), over.expression(f[2]), over.expression(f[3])});
    return code;
}

}  // namespace

struct KernelLoader::Job : KernelJob {
    std::shared_ptr<const LoadedKernel> loaded;
    codegen::CompiledObject object;  // of a kernel that was compiled now
    KernelCode emitted;
};

codegen::IrModule KernelLoader::emit(const Kernel& kernel, KernelCode& launches) const {
    codegen::IrModule module = jit_.make_module(kernel.name);
    const std::lock_guard turn(emitting_);
    launches = kernel.contraction
                   ? codegen::emit_contraction(*module.module, kernel, jit_.target(), kernel.name)
                   : codegen::emit_kernel(*module.module, kernel, jit_.target(), kernel.name);
    return module;
}

void KernelLoader::compile_one(Job& job) {
    try {
        codegen::IrModule module = emit(*job.kernel, job.emitted);
        LoadedKernel loaded;
        for (const std::string& name : take_out_shared(module))
            loaded.shared.push_back(library_.get(name, [&] {
                KernelCode unused;
                codegen::IrModule alone = emit(*job.kernel, unused);
                keep_only(alone, name);
                return jit_.compile(std::move(alone));
            }));
        job.object = jit_.compile(std::move(module));
        loaded.code = jit_.load(job.object, symbols_of(loaded.shared));
        job.loaded = std::make_shared<LoadedKernel>(std::move(loaded));
    } catch (...) {
        job.error = std::current_exception();
    }
}

void KernelLoader::take_from_disk(std::vector<Job>& jobs, const std::string& pack_key,
                                  CompileReport& report) {
    const std::optional<CachedBytes> stored = cache_.load(pack_key);
    if (!stored) return;
    const auto entries = unpack(stored->bytes());
    if (!entries) {
        cache_.remove(pack_key);
        return;
    }
    std::map<std::string_view, std::span<const std::uint8_t>> by_name;
    for (const PackEntry& e : *entries) by_name[e.name] = e.bytes;
    const auto bytes_of = [&](std::string_view name) {
        const auto found = by_name.find(name);
        if (found == by_name.end()) throw InternalError("the cache lacks " + std::string(name));
        return found->second;
    };
    const auto text_of = [&](const std::string& name) {
        const auto bytes = bytes_of(name);
        return std::string(bytes.begin(), bytes.end());
    };
    for (Job& job : jobs) {
        if (job.loaded || !by_name.contains(job.key)) continue;
        try {
            LoadedKernel loaded;
            std::istringstream names(text_of(job.key + std::string(kShared)));
            for (std::string name; std::getline(names, name);)
                loaded.shared.push_back(library_.get(name, [&] {
                    const auto bytes = bytes_of(name);
                    return codegen::CompiledObject{{bytes.begin(), bytes.end()}};
                }));
            loaded.launches = text_of(job.key + std::string(kLaunches));
            loaded.code = jit_.load(bytes_of(job.key), symbols_of(loaded.shared));
            job.loaded = std::make_shared<LoadedKernel>(std::move(loaded));
            ++report.from_disk;
        } catch (const Error&) {
            // Code that does not link is compiled again and replaces the entry.
        }
    }
}

void KernelLoader::store(const std::vector<Job>& jobs, const std::string& pack_key) {
    // A deque: the entries look into it while it grows.
    std::deque<std::string> texts;
    std::vector<PackEntry> entries;
    std::set<std::string_view> shared;
    const auto add = [&](std::string name, std::span<const std::uint8_t> bytes) {
        texts.push_back(std::move(name));
        entries.push_back({texts.back(), bytes});
    };
    const auto add_text = [&](std::string name, std::string text) {
        texts.push_back(std::move(text));
        const std::string& kept = texts.back();
        add(std::move(name), {reinterpret_cast<const std::uint8_t*>(kept.data()), kept.size()});
    };
    for (const Job& job : jobs) {
        // A kernel that came from this process has no object here; its pack has it.
        if (job.object.bytes.empty()) continue;
        std::string names;
        for (const auto& f : job.loaded->shared) {
            names += f->name + "\n";
            if (shared.insert(f->name).second) add(f->name, f->object.bytes);
        }
        add(job.key, job.object.bytes);
        add_text(job.key + std::string(kLaunches), job.loaded->launches);
        add_text(job.key + std::string(kShared), names);
    }
    cache_.store(pack_key, pack(entries));
}

std::vector<KernelLaunches> KernelLoader::load(const Plan& plan, int threads,
                                               const InterruptCheck& interrupted,
                                               CompileReport& report,
                                               std::vector<std::shared_ptr<const void>>& code) {
    std::vector<Job> jobs(plan.kernels.size());
    const std::string pack_key = set_keys(pointers(jobs), plan, kVersion, jit_.cache_key());
    {
        std::lock_guard lock(mutex_);
        report.from_process += take_loaded(jobs, loaded_);
    }
    if (cache_.enabled() && !missing_code(jobs).empty()) take_from_disk(jobs, pack_key, report);
    if (std::vector<KernelJob*> todo = missing_code(jobs); !todo.empty()) {
        const auto count = todo.size();
        compile_on_threads(std::move(todo), threads, {interrupted, {}},
                           [this](KernelJob& job) { compile_one(static_cast<Job&>(job)); });
        report.compiled = static_cast<int>(count);
        for (Job& job : jobs)
            if (!job.object.bytes.empty())
                job.loaded = std::make_shared<LoadedKernel>(LoadedKernel{
                    job.loaded->shared, job.loaded->code, launches_text(job.emitted, job)});
        if (cache_.enabled()) store(jobs, pack_key);
    }
    std::vector<KernelLaunches> kernels;
    std::lock_guard lock(mutex_);
    for (Job& job : jobs) {
        KernelLaunches launches;
        for (const Launch& l : parse_launches(job.loaded->launches, job).launches)
            launches.launches.push_back(
                {job.loaded->code->function<std::remove_pointer_t<KernelFn>>(l.symbol), l});
        kernels.push_back(std::move(launches));
        code.push_back(job.loaded);
        loaded_[job.key] = job.loaded;
    }
    std::erase_if(loaded_, [](const auto& entry) { return entry.second.expired(); });
    return kernels;
}

}  // namespace ingot::runtime
