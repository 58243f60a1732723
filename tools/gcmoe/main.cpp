// gcmoe: one MoE layer from the command line.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "check_command.hpp"
#include "command_words.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "gcmoe_version.hpp"

namespace gcmoe::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  gcmoe run --model v4.1-flash --reduced 8 --ranks 8 --tokens 16
  gcmoe synth --out /tmp/layer --model v4.1-flash --reduced 8
  gcmoe run --checkpoint /tmp/layer --layer 0 --ranks 8 --tokens 1,2,4,8,16,32,64,128
  gcmoe pack --checkpoint /tmp/layer --ranks 8 --rank 0 --out /tmp/rank0.gcmoe
  gcmoe check --backend cpu --suite routed
  gcmoe trace --model v4.1-flash --reduced 8 --ranks 4 --tokens 64
  gcmoe info --model glm-5.2 --ranks 8 --max-tokens 256
  gcmoe bench --tokens 1,32,256 --out points.jsonl
  gcmoe tune --model v4.1-flash --out tuned.jsonl
Every subcommand takes --json (one JSON object as the last line of stdout) and --help.
Exit codes: 0 done and verified, 1 ran and a check failed, 2 bad input, 3 stalled.)";

std::vector<std::string> subcommand_names(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
        names.push_back(command->get_name());
    }
    return names;
}

std::vector<std::string> option_names(const CLI::App& command) {
    std::vector<std::string> names;
    for (const CLI::Option* option : command.get_options()) {
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
    return names;
}

bool asks_for_json(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--json") == 0) return true;
    }
    return false;
}

// Ok, or what is wrong with the first word after `gcmoe`.
Status check_subcommand(const CLI::App& app, int argc, char** argv) {
    const std::vector<std::string> names = subcommand_names(app);
    if (argc < 2) {
        return {Code::kBadInput,
                "a subcommand is missing: " + joined(names) + " (see gcmoe --help)"};
    }
    const std::string word = argv[1];
    const bool known = std::find(names.begin(), names.end(), word) != names.end();
    if (known || word.rfind("-", 0) == 0) return {};
    std::string message = fmt::format("no subcommand is called '{}'", word);
    const std::string near = nearest(word, names);
    message += near.empty() ? fmt::format("; there are {}", joined(names))
                            : fmt::format("; did you mean 'gcmoe {}'?", near);
    return {Code::kBadInput, message};
}

// CLI11's sentence, with the nearest option for one that does not exist.
Status parse_error(const CLI::App& app, const CLI::ParseError& error, std::string* subcommand) {
    const std::vector<CLI::App*> parsed = app.get_subcommands();
    const CLI::App& command = parsed.empty() ? app : *parsed.front();
    *subcommand = parsed.empty() ? "" : command.get_name();
    std::string message = error.what();
    while (!message.empty() && (message.back() == '\n' || message.back() == ' '))
        message.pop_back();
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
        const std::vector<std::string> extras = app.remaining(true);
        const std::string word =
            extras.empty() ? "" : extras.front().substr(0, extras.front().find('='));
        message = word.rfind("-", 0) == 0 ? fmt::format("no option is called {}", word)
                                          : fmt::format("'{}' was not expected", word);
        const std::string near = nearest(word, option_names(command));
        if (!near.empty()) message += fmt::format("; did you mean {}?", near);
    }
    const std::string space = subcommand->empty() ? "" : " ";
    return {Code::kBadInput, fmt::format("{} (see gcmoe{}{} --help)", message, space, *subcommand)};
}

int parse_and_run(CLI::App& app, int argc, char** argv, const int& exit_code) {
    const bool json = asks_for_json(argc, argv);
    if (Status status = check_subcommand(app, argc, argv); !status.ok()) {
        return report_error("", status, json);
    }
    try {
        if (argv[1][0] != '-') {
            const Status status =
                check_words(*app.get_subcommand(argv[1]), {argv + 2, argv + argc});
            if (!status.ok()) return report_error(argv[1], status, json);
        }
        app.parse(argc, argv);
        return exit_code;
    } catch (const CLI::Success& success) {  // --help, --version
        return app.exit(success);
    } catch (const CLI::ParseError& error) {
        std::string subcommand;
        const Status status = parse_error(app, error, &subcommand);
        return report_error(subcommand, status, json);
    } catch (const std::bad_alloc&) {
        return report_error("", {Code::kUnsupported, "out of memory"}, json);
    } catch (const std::system_error& error) {
        return report_error(
            "",
            {Code::kUnsupported, fmt::format("the system has no more threads: {}", error.what())},
            json);
    } catch (const std::exception& error) {
        if (std::ferror(stdout) != 0) return kExitBadInput;  // main says why
        return report_error("", {Code::kInternal, error.what()}, json);
    }
}

}  // namespace
}  // namespace gcmoe::cli

int main(int argc, char** argv) {
    using namespace gcmoe::cli;
    hold_standard_streams();
    // A limit of a file's size is then an error of the write (EFBIG), told like a full disk.
    std::signal(SIGXFSZ, SIG_IGN);
    CLI::App app{
        "GC-MoE: the decode step of a mixture-of-experts layer over expert-parallel ranks.",
        "gcmoe"};
    app.set_version_flag("--version",
                         fmt::format("gcmoe {} ({})", gcmoe::kVersion, gcmoe::kCommit));
    app.formatter(make_help_formatter());
    app.footer(kExamples);
    app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app.require_subcommand(1);
    int exit_code = kExitDone;
    add_run_command(app, &exit_code);
    gcmoe::add_check_command(app, &exit_code);
    add_info_command(app, &exit_code);
    add_synth_command(app, &exit_code);
    add_pack_command(app, &exit_code);
    add_trace_command(app, &exit_code);
    add_bench_command(app, &exit_code);
    add_tune_command(app, &exit_code);
    const int code = parse_and_run(app, argc, argv, exit_code);
    // What was printed is part of what was asked for: a full disk must not look like success.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
        print_error("", "standard output cannot be written; what was printed is not complete");
        return code == kExitDone ? kExitBadInput : code;
    }
    return code;
}
