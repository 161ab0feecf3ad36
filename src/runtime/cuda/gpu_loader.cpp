// See gpu_loader.h.
#include "runtime/cuda/gpu_loader.h"

#include <algorithm>
#include <cctype>

#include "codegen/llvm/emit_nvptx.h"
#include "runtime/cuda/assembler.h"
#include "runtime/kernel_jobs.h"

namespace ingot::runtime::cuda {
namespace {

constexpr std::string_view kVersion = "ingot gpu kernels 4";
constexpr std::string_view kLaunches = "/launches";

std::string launches_text(const std::vector<GpuLaunch>& launches, const KernelJob& job) {
    const LaunchText over(*job.kernel, *job.pool);
    std::string text;
    for (const GpuLaunch& l : launches) {
        const std::string fields[] = {l.symbol, over.text(l.points),
                                      std::to_string(l.points_per_block), std::to_string(l.threads),
                                      over.text(l.shared_bytes)};
        text += LaunchText::line(fields);
    }
    return text;
}

std::vector<GpuLaunch> parse_launches(const std::string& text, const KernelJob& job) {
    const LaunchText over(*job.kernel, *job.pool);
    std::vector<GpuLaunch> launches;
    for (const auto& f : LaunchText::parse(text, 5)) {
        GpuLaunch l;
        l.symbol = f[0];
        l.points = over.expression(f[1]);
        l.points_per_block = static_cast<unsigned>(std::stoul(f[2]));
        l.threads = static_cast<unsigned>(std::stoul(f[3]));
        l.shared_bytes = over.expression(f[4]);
        launches.push_back(std::move(l));
    }
    return launches;
}

}  // namespace

codegen::TargetInfo gpu_target(int capability) {
    for (int known : {90, 89, 86, 80, 75})
        if (capability >= known) return codegen::target_named("sm_" + std::to_string(known));
    return codegen::target_named("sm_70");
}

PtxKernel emit_ptx(const codegen::Jit& jit, const Kernel& kernel, std::mutex* emitting) {
    PtxKernel out;
    codegen::IrModule module = jit.make_module(kernel.name);
    // Profilers show it.
    std::string name = "ingot_" + kernel.name.substr(0, 60);
    for (char& c : name)
        if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
    {
        std::unique_lock<std::mutex> turn;
        if (emitting != nullptr) turn = std::unique_lock(*emitting);
        out.launches = codegen::emit_nvptx(*module.module, kernel, jit.target(), name);
    }
    out.ptx = jit.assembly(std::move(module));
    return out;
}

struct GpuLoader::Job : KernelJob {
    std::shared_ptr<const LoadedGpuKernel> loaded;
    std::vector<std::uint8_t> cubin;  // of a kernel that was compiled now
    std::vector<GpuLaunch> emitted;
};

GpuLoader::GpuLoader(std::shared_ptr<const Gpu> gpu, DiskCache& cache)
    : gpu_(std::move(gpu)), jit_(gpu_target(gpu_->capability())), cache_(cache) {}

void GpuLoader::compile_one(Job& job) const {
    try {
        PtxKernel k = emit_ptx(jit_, *job.kernel, &emitting_);
        job.emitted = std::move(k.launches);
        job.cubin = assemble(*gpu_, k.ptx);
        job.loaded = std::make_shared<LoadedGpuKernel>(LoadedGpuKernel{gpu_->load(job.cubin), {}});
    } catch (...) {
        job.error = std::current_exception();
    }
}

void GpuLoader::take_from_disk(std::vector<Job>& jobs, const std::string& pack_key,
                               CompileReport& report) {
    const std::optional<CachedBytes> stored = cache_.load(pack_key);
    if (!stored) return;
    const auto entries = unpack(stored->bytes());
    if (!entries) return cache_.remove(pack_key);
    std::map<std::string_view, std::span<const std::uint8_t>> by_name;
    for (const PackEntry& e : *entries) by_name[e.name] = e.bytes;
    for (Job& job : jobs) {
        const auto cubin = by_name.find(job.key);
        const auto launches = by_name.find(job.key + std::string(kLaunches));
        if (job.loaded || cubin == by_name.end() || launches == by_name.end()) continue;
        try {
            const auto text = launches->second;
            job.loaded = std::make_shared<LoadedGpuKernel>(
                LoadedGpuKernel{gpu_->load(cubin->second), std::string(text.begin(), text.end())});
            ++report.from_disk;
        } catch (const Error&) {
            // What does not load is compiled again and replaces the entry.
        }
    }
}

void GpuLoader::store(const std::vector<Job>& jobs, const std::string& pack_key) {
    std::vector<std::string> names;
    names.reserve(2 * jobs.size());
    std::vector<PackEntry> entries;
    for (const Job& job : jobs) {
        if (job.cubin.empty()) continue;
        names.push_back(job.key);
        entries.push_back({names.back(), job.cubin});
        names.push_back(job.key + std::string(kLaunches));
        const std::string& text = job.loaded->launches;
        entries.push_back(
            {names.back(), {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}});
    }
    cache_.store(pack_key, pack(entries));
}

std::vector<KernelLaunches> GpuLoader::load(const Plan& plan, int threads,
                                            const InterruptCheck& interrupted,
                                            CompileReport& report,
                                            std::vector<std::shared_ptr<const void>>& code) {
    const std::string target = jit_.cache_key() + "/sm_" + std::to_string(gpu_->capability());
    std::vector<Job> jobs(plan.kernels.size());
    const std::string pack_key = set_keys(pointers(jobs), plan, kVersion, target);
    {
        std::lock_guard lock(mutex_);
        report.from_process += take_loaded(jobs, loaded_);
    }
    if (cache_.enabled() && !missing_code(jobs).empty()) take_from_disk(jobs, pack_key, report);
    if (std::vector<KernelJob*> todo = missing_code(jobs); !todo.empty()) {
        const auto count = todo.size();
        compile_on_threads(std::move(todo), threads, interrupted,
                           [this](KernelJob& job) { compile_one(static_cast<Job&>(job)); });
        report.compiled = static_cast<int>(count);
        for (Job& job : jobs)
            if (!job.cubin.empty())
                job.loaded = std::make_shared<LoadedGpuKernel>(
                    LoadedGpuKernel{job.loaded->module, launches_text(job.emitted, job)});
        if (cache_.enabled()) store(jobs, pack_key);
    }
    std::vector<KernelLaunches> kernels;
    std::lock_guard lock(mutex_);
    for (Job& job : jobs) {
        KernelLaunches launches;
        for (GpuLaunch& l : parse_launches(job.loaded->launches, job)) {
            LaunchCode c;
            c.gpu_function = job.loaded->module->function(
                l.symbol, std::min(l.shared_bytes.range().hi, gpu_->shared_bytes()));
            c.gpu = std::move(l);
            launches.launches.push_back(std::move(c));
        }
        kernels.push_back(std::move(launches));
        code.push_back(job.loaded);
        loaded_[job.key] = job.loaded;
    }
    std::erase_if(loaded_, [](const auto& entry) { return entry.second.expired(); });
    return kernels;
}

}  // namespace ingot::runtime::cuda
