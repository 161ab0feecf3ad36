// See kernel_jobs.h.
#include "runtime/kernel_jobs.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <sstream>
#include <thread>

#include "ir/error.h"
#include "runtime/cache.h"
#include "schedule/nest.h"

namespace ingot::runtime {

std::string set_keys(std::span<KernelJob* const> jobs, const Plan& plan, std::string_view version,
                     std::string_view target) {
    std::vector<std::string_view> all{version, target};
    for (std::size_t i = 0; i < jobs.size(); ++i) {
        KernelJob& job = *jobs[i];
        job.kernel = &plan.kernels[i];
        job.pool = plan.pool.get();
        job.text = to_string(plan.kernels[i]);
        const std::string_view parts[] = {version, target, job.text};
        job.key = content_key(parts);
        all.push_back(job.key);
    }
    return content_key(all);
}

std::string LaunchText::text(Expr e) const {
    return to_string(substitute(e, [&](Expr symbol) -> std::optional<Expr> {
        for (std::size_t i = 0; i < kernel_.sizes.size(); ++i)
            if (kernel_.sizes[i] == symbol) return pool_.symbol("ks" + std::to_string(i));
        return std::nullopt;
    }));
}

Expr LaunchText::expression(const std::string& text) const {
    return substitute(parse_expr(text, pool_), [&](Expr symbol) -> std::optional<Expr> {
        const std::string name = to_string(symbol);
        std::size_t i = 0;
        if (!name.starts_with("ks")) return std::nullopt;
        const auto end = name.data() + name.size();
        if (std::from_chars(name.data() + 2, end, i).ptr != end || i >= kernel_.sizes.size())
            return std::nullopt;
        return kernel_.sizes[i];
    });
}

std::vector<std::vector<std::string>> LaunchText::parse(const std::string& lines,
                                                        std::size_t count) {
    std::vector<std::vector<std::string>> all;
    std::istringstream in(lines);
    for (std::string line; std::getline(in, line);) {
        std::istringstream rest(line);
        std::vector<std::string>& fields = all.emplace_back();
        for (std::string field; std::getline(rest, field, '\t');) fields.push_back(field);
        if (fields.size() != count) throw InternalError("a launch of another form: " + line);
    }
    return all;
}

std::string LaunchText::line(std::span<const std::string> fields) {
    std::string line;
    for (const std::string& f : fields) line += (line.empty() ? "" : "\t") + f;
    return line + '\n';
}

namespace {
/// Threads that are told to stop and waited for, also when starting one of them or asking for an
/// interruption throws: a thread that is left running ends the process.
struct Workers {
    explicit Workers(std::atomic<bool>& stop_flag) : stop(stop_flag) {}
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;
    ~Workers() {
        if (std::uncaught_exceptions() > 0) stop = true;
        for (std::thread& t : threads) t.join();
    }
    std::vector<std::thread> threads;
    std::atomic<bool>& stop;
};
}  // namespace

void compile_on_threads(std::vector<KernelJob*> jobs, int threads, const WhileWaiting& waiting,
                        const std::function<void(KernelJob&)>& compile) {
    std::ranges::stable_sort(jobs, std::greater{}, [](KernelJob* j) { return j->text.size(); });
    std::atomic<std::size_t> next{0};
    std::atomic<bool> stop{false};
    std::mutex mutex;
    std::condition_variable done;
    std::size_t finished = 0;
    const auto work = [&] {
        for (std::size_t i; !stop && (i = next.fetch_add(1)) < jobs.size();) {
            compile(*jobs[i]);
            if (jobs[i]->error) stop = true;
        }
        std::lock_guard lock(mutex);
        ++finished;
        done.notify_one();
    };
    const auto asked_to_stop = [&] {
        if (waiting.interrupted && waiting.interrupted()) stop = true;
        return stop.load();
    };
    bool interrupt = asked_to_stop();
    if (!interrupt) {
        const std::size_t count =
            std::min<std::size_t>(jobs.size(), static_cast<std::size_t>(std::max(threads, 1)));
        Workers workers(stop);  // joined however this scope is left
        for (std::size_t t = 0; t < count; ++t) workers.threads.emplace_back(work);
        if (waiting.at_once) waiting.at_once();
        std::unique_lock lock(mutex);
        while (!done.wait_for(lock, std::chrono::milliseconds(20),
                              [&] { return finished == workers.threads.size(); })) {
            lock.unlock();
            if (!stop && asked_to_stop()) interrupt = true;
            lock.lock();
        }
    }
    if (interrupt) throw Interrupted("the compilation was interrupted");
    for (const KernelJob* job : jobs)
        if (job->error) std::rethrow_exception(job->error);
}

}  // namespace ingot::runtime
