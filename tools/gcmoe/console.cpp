#include "console.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

namespace gcmoe::cli {
namespace {

// Between two redraws of a bar, and between two lines where stderr is no terminal.
constexpr std::chrono::milliseconds kRedraw{100};
constexpr std::chrono::milliseconds kReprint{2000};
// Work that ends sooner shows no bar.
constexpr std::chrono::milliseconds kQuiet{300};
constexpr int kBarColumns = 24;

std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::size_t diagonal = row[0];
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
        }
    }
    return row[b.size()];
}

constexpr std::size_t kHelpColumns = 100;
constexpr std::size_t kOptionColumns = 32;

class HelpFormatter final : public CLI::Formatter {
  public:
    HelpFormatter() { column_width(kOptionColumns); }

    [[nodiscard]] std::string make_option_desc(const CLI::Option* option) const override {
        std::string out;
        std::size_t column = 0;
        std::string word;
        for (const char c : option->get_description() + ' ') {
            if (c != ' ') {
                word += c;
                continue;
            }
            if (column > 0 && column + 1 + word.size() > kHelpColumns - kOptionColumns) {
                out += '\n';
                column = 0;
            }
            if (column > 0) out += ' ';
            column += word.size() + (column > 0 ? 1 : 0);
            out += word;
            word.clear();
        }
        return out;
    }

    // A pair of flags without the "{false}" that CLI11 adds to the second.
    [[nodiscard]] std::string make_option_name(const CLI::Option* option,
                                               bool is_positional) const override {
        std::string name = CLI::Formatter::make_option_name(option, is_positional);
        const std::size_t brace = name.find("{false}");
        return brace == std::string::npos ? name : name.erase(brace, 7);
    }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> make_help_formatter() {
    return std::make_shared<HelpFormatter>();
}

int exit_code_of(Code code) {
    switch (code) {
        case Code::kOk:
            return kExitDone;
        case Code::kBadConfig:
        case Code::kBadIndex:
        case Code::kBadInput:
        case Code::kBadCheckpoint:
        case Code::kInexact:
        case Code::kUnsupported:
            return kExitBadInput;
        case Code::kStalled:
            return kExitStalled;
        case Code::kBusy:
        case Code::kInternal:
            return kExitFailed;
    }
    return kExitFailed;
}

Status option_error(std::string_view option, std::string_view value, std::string_view problem) {
    const std::string_view space = value.empty() ? "" : " ";
    return {Code::kBadInput, fmt::format("{}{}{}: {}", option, space, value, problem)};
}

void hold_standard_streams() {
    const int ways[] = {O_RDONLY, O_RDONLY, O_WRONLY};  // writing to such a stdout fails
    for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (::fcntl(number, F_GETFD) < 0) (void)::open("/dev/null", ways[number]);
    }
}

void print_aside(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

void print_error(std::string_view subcommand, std::string_view message) {
    const std::string_view space = subcommand.empty() ? "" : " ";
    print_aside(fmt::format("gcmoe{}{}: {}\n", space, subcommand, message));
}

void print_json(const nlohmann::ordered_json& object) {
    using ErrorHandler = nlohmann::ordered_json::error_handler_t;
    fmt::print("{}\n", object.dump(-1, ' ', true, ErrorHandler::replace));
    std::fflush(stdout);
}

int report_error(std::string_view subcommand, const Status& status, bool json) {
    std::string message = status.message();
    if (status.code() == Code::kInternal) message = "a bug in gcmoe, please report it: " + message;
    print_error(subcommand, message);
    if (json) {
        print_json({{"error", code_name(status.code())}, {"verified", false}, {"reason", message}});
    }
    return exit_code_of(status.code());
}

void add_console_options(CLI::App& command, ConsoleOptions* options) {
    command.add_flag("--json", options->json, "Print one JSON object as the last line, no report");
    command.add_flag("--progress", options->progress,
                     "Show progress on stderr even if that is no terminal");
}

ProgressBar::ProgressBar(std::string label, std::uint64_t total, bool forced)
    : label_(std::move(label)),
      total_(total),
      on_terminal_(isatty(STDERR_FILENO) != 0),
      visible_(on_terminal_ || forced),
      begin_(Clock::now()),
      next_draw_(forced ? begin_ : begin_ + kQuiet) {}

ProgressBar::~ProgressBar() {
    if (!drawn_) return;
    if (on_terminal_) {
        print_aside("\r\x1b[K");
    } else {
        const std::chrono::duration<double> passed = Clock::now() - begin_;
        print_aside(fmt::format("{}: {}/{} in {:.1f} s\n", label_, done_, total_, passed.count()));
    }
    std::fflush(stderr);
}

void ProgressBar::advance(std::uint64_t steps) {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ += steps;
    const Clock::time_point now = Clock::now();
    if (!visible_ || now < next_draw_) return;
    next_draw_ = now + (on_terminal_ ? kRedraw : kReprint);
    draw();
}

void ProgressBar::draw() {
    drawn_ = true;
    const double share =
        total_ == 0 ? 1.0 : static_cast<double>(done_) / static_cast<double>(total_);
    if (!on_terminal_) {
        print_aside(fmt::format("{}: {}/{}\n", label_, done_, total_));
        return;
    }
    const int filled = static_cast<int>(share * kBarColumns);
    print_aside(fmt::format("\r{} [{:#<{}}{:.<{}}] {}/{}\x1b[K", label_, "", filled, "",
                            kBarColumns - filled, done_, total_));
    std::fflush(stderr);
}

std::string Table::text(std::size_t right, std::string_view indent) const {
    std::vector<std::size_t> widths;
    for (const std::vector<std::string>& row : rows_) {
        widths.resize(std::max(widths.size(), row.size()));
        for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    std::string out;
    for (const std::vector<std::string>& row : rows_) {
        std::string line(indent);
        for (std::size_t i = 0; i < row.size(); ++i) {
            if (i > 0) line += "  ";
            line += i < right ? fmt::format("{:<{}}", row[i], widths[i])
                              : fmt::format("{:>{}}", row[i], widths[i]);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        out += line + "\n";
    }
    return out;
}

std::string bytes_text(std::uint64_t bytes) {
    constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = static_cast<double>(bytes);
    std::size_t unit = 0;
    while (value >= 1024.0 && unit + 1 < std::size(kUnits)) {
        value /= 1024.0;
        ++unit;
    }
    return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string joined(const std::vector<std::string>& words) {
    return fmt::format("{}", fmt::join(words, ", "));
}

std::string counted(std::uint64_t count, std::string_view noun) {
    const char* ending = noun.ends_with("ch") ? "es" : "s";
    return fmt::format("{} {}{}", count, noun, count == 1 ? "" : ending);
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
    std::string best;
    std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
    for (const std::string& candidate : candidates) {
        const std::size_t distance = edit_distance(word, candidate);
        if (distance < best_distance) {
            best_distance = distance;
            best = candidate;
        }
    }
    return best;
}

}  // namespace gcmoe::cli
