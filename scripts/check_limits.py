#!/usr/bin/env python3
"""Sizes of conventions: functions, files, lines, parameters, plain ASCII.

  function   warning over 60 lines, error over 120; a comment `// limit: <reason>` at it lifts
             the error to 160
  file       warning over 500 lines, error over 800
  line       error over 100 columns
  bytes      error outside ASCII
  parameters warning over 6; template parameters, warning over 4

Functions are found by matching braces, not by a compiler: exact for the code this tree's
clang-format leaves, good enough elsewhere.
"""

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import source_tree

FUNCTION_WARN, FUNCTION_ERROR, FUNCTION_LIFTED = 60, 120, 160
FILE_WARN, FILE_ERROR = 500, 800
MAX_COLUMNS = 100
MAX_PARAMETERS, MAX_TEMPLATE_PARAMETERS = 6, 4

LIMIT_COMMENT = re.compile(r"(//|#) limit: *\S")
NOT_A_FUNCTION = re.compile(r"\b(namespace|enum|union|concept)\b|\bextern\b\s*\"")
CLASS_HEAD = re.compile(r"(^|[;{}>]|\b)\s*(class|struct)\b")
TEST_MACRO = re.compile(r"\b(TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P|BENCHMARK\w*)\s*\(")


@dataclass
class Function:
    name: str
    first_line: int
    body_line: int
    last_line: int
    num_parameters: int
    num_template_parameters: int


def blank_preprocessor(code):
    """code without directives and their continuation lines: macros may hold odd braces."""
    lines, inside = [], False
    for line in code.split("\n"):
        inside = inside or line.lstrip().startswith("#")
        lines.append("" if inside else line)
        inside = inside and line.rstrip().endswith("\\")
    return "\n".join(lines)


def top_level_commas(text):
    """Commas of text outside every kind of bracket."""
    depth = commas = 0
    for index, char in enumerate(text):
        if char in "([{<":
            depth += 1
        elif char in ")]}" or (char == ">" and text[index - 1:index] != "-"):
            depth -= 1
        elif char == "," and depth == 0:
            commas += 1
    return commas


def bracket_end(text, start, opening, closing):
    """The index of the bracket that closes text[start], or -1."""
    depth = 0
    for index in range(start, len(text)):
        if text[index] == opening:
            depth += 1
        elif text[index] == closing and text[index - 1] != "-":
            depth -= 1
            if depth == 0:
                return index
    return -1


def parameter_list(head):
    """(name, text between the parentheses) of the function that head declares, or None."""
    for match in re.finditer(r"(operator\s*\(\s*\)|operator\s*[^\s\w(]+|[~\w]+)\s*\(", head):
        name = match.group(1)
        start = match.end() - 1
        end = bracket_end(head, start, "(", ")")
        if end < 0:
            return None
        if name not in ("decltype", "noexcept", "alignas", "requires", "explicit", "sizeof",
                        "__attribute__", "__launch_bounds__", "__declspec"):
            return name, head[start + 1:end]
    return None


def count_template_parameters(head):
    match = re.match(r"\s*template\s*<", head)
    if not match:
        return 0
    end = bracket_end(head, match.end() - 1, "<", ">")
    inner = head[match.end():end]
    return top_level_commas(inner) + 1 if inner.strip() else 0


def is_class(head):
    """True if head opens a class body rather than a function that returns or takes one."""
    without_template = head
    match = re.match(r"\s*template\s*<", head)
    if match:
        without_template = head[bracket_end(head, match.end() - 1, "<", ">") + 1:]
    if not CLASS_HEAD.search(without_template):
        return False
    # `class alignas(16) Name : public Base<decltype(x)>` still has no parameter list of its own.
    return parameter_list(re.sub(r"alignas\s*\([^)]*\)|:(?!:).*", "", without_template)) is None


def function_of(head, head_line, brace_line):
    """The function whose body opens after head, or None for any other brace."""
    if NOT_A_FUNCTION.search(head.split("(")[0]) or is_class(head):
        return None
    found = parameter_list(head)
    before_parameters = head.split("(")[0].replace("operator=", "")
    if found is None or re.search(r"(?<![=!<>])=(?!=)", before_parameters):
        return None
    name, parameters = found
    count = 0
    if parameters.strip() not in ("", "void") and not TEST_MACRO.search(head):
        count = top_level_commas(parameters) + 1
    return Function(name, head_line, brace_line, 0, count, count_template_parameters(head))


def cpp_functions(text):
    """Functions with bodies at namespace or class scope, in order."""
    code = blank_preprocessor(source_tree.without_comments(text))
    functions, scopes = [], []  # scopes: the Function whose body a brace opened, or None
    current = None              # the outermost function we are in
    head_start, line, parens = 0, 1, 0
    for index, char in enumerate(code):
        if char == "\n":
            line += 1
        elif char in "()":
            parens += 1 if char == "(" else -1
        elif char == "{":
            opened = None
            if current is None and parens == 0:
                head = code[head_start:index]
                lead = len(head) - len(head.lstrip())
                head_line = line - head[lead:].count("\n")
                opened = function_of(head, head_line, line)
                if opened and is_initialiser(head):
                    opened = None  # `: member_{x} {`: the body is still to come
                current = opened
            scopes.append((opened, parens))
            keep_head = current is None and is_initialiser(code[head_start:index])
            if not keep_head:
                head_start = index + 1
        elif char == "}" and scopes:
            opened, parens = scopes.pop()
            if opened:
                opened.last_line = line
                functions.append(opened)
                current = None
            if not (current is None and is_initialiser(code[head_start:index])):
                head_start = index + 1
        elif char == ";" and current is None and parens == 0:
            head_start = index + 1
    return functions


def is_initialiser(head):
    """True inside a constructor's member list, at a brace that belongs to a member."""
    match = re.search(r"\)\s*(noexcept\s*)?:(?!:)", head)
    if not match:
        return False
    rest = head[match.end():].strip()
    # A member's brace follows its bare name; the body's brace follows a closed initialiser.
    return bool(re.search(r"(^|,)\s*[\w:]+(<[^{}]*>)?\s*(\{[^{}]*)?$", rest))


def python_functions(text):
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = node.args
            count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
            found.append(Function(node.name, node.lineno, node.lineno, node.end_lineno, count, 0))
    return found


def has_limit_comment(lines, function):
    """A `limit:` comment in the comment above the function, in its head or on its first line."""
    first = function.first_line - 1
    while first > 0 and re.match(r"\s*(//|#)", lines[first - 1]):
        first -= 1
    return any(LIMIT_COMMENT.search(line) for line in lines[first:function.body_line + 1])


def check_function(path, lines, function):
    """(errors, warnings) about one function."""
    size = function.last_line - function.first_line + 1
    place = f"{path}:{function.first_line}: {function.name}"
    errors, warnings = [], []
    allowed = FUNCTION_LIFTED if has_limit_comment(lines, function) else FUNCTION_ERROR
    if size > allowed:
        errors.append(f"{place}: {size} lines, at most {allowed}")
    elif size > FUNCTION_WARN:
        warnings.append(f"{place}: {size} lines, aim for {FUNCTION_WARN}")
    if function.num_parameters > MAX_PARAMETERS:
        warnings.append(f"{place}: {function.num_parameters} parameters, aim for {MAX_PARAMETERS}"
                        ": make a struct")
    if function.num_template_parameters > MAX_TEMPLATE_PARAMETERS:
        warnings.append(f"{place}: {function.num_template_parameters} template parameters, "
                        f"aim for {MAX_TEMPLATE_PARAMETERS}")
    return errors, warnings


def check_file(root, path):
    """(errors, warnings) about one file."""
    data = (root / path).read_bytes()
    text = data.decode("utf-8", errors="replace")
    lines = text.splitlines()
    errors, warnings = [], []
    for number, line in enumerate(lines, start=1):
        if len(line) > MAX_COLUMNS:
            errors.append(f"{path}:{number}: {len(line)} columns, at most {MAX_COLUMNS}")
        if not line.isascii():
            errors.append(f"{path}:{number}: a byte outside ASCII")
    if len(lines) > FILE_ERROR:
        errors.append(f"{path}: {len(lines)} lines, at most {FILE_ERROR}")
    elif len(lines) > FILE_WARN:
        warnings.append(f"{path}: {len(lines)} lines, aim for {FILE_WARN}")
    functions = []
    if path.suffix in source_tree.SOURCE_SUFFIXES:
        functions = cpp_functions(text)
    elif path.suffix == ".py":
        functions = python_functions(text)
    for function in functions:
        more_errors, more_warnings = check_function(path, lines, function)
        errors += more_errors
        warnings += more_warnings
    return errors, warnings


def judge(root):
    """(errors, warnings) about the tree."""
    suffixes = source_tree.SOURCE_SUFFIXES | {".py", ".sh", ".cmake"}
    paths = source_tree.project_files(root, suffixes)
    paths += [Path(name) for name in ("dev", "CMakeLists.txt") if (root / name).is_file()]
    paths += sorted(path.relative_to(root) for path in (root / "scripts/gpu").glob("*")
                    if path.is_file() and not path.suffix)
    errors, warnings = [], []
    for path in paths:
        more_errors, more_warnings = check_file(root, path)
        errors += more_errors
        warnings += more_warnings
    return errors, warnings


def planted_function(num_lines, head="int f(int a)", comment=""):
    """A source file with one function of num_lines lines in a namespace."""
    return f"namespace n {{\n{comment}{head} {{\n" + "    g();\n" * (num_lines - 2) + "}\n}\n"


def self_test_cases():
    seven = "int f(std::map<int, int> a, int b, int c, int d, int e, int g, int h)"
    constructor = "A::A(int x) : a_{x}, b_(x), c_{h(x), 1}"
    method = "struct S : B<int> {\n" + planted_function(125)[len("namespace n {\n"):]
    return [
        ("clean", {"a.cpp": planted_function(60)}, None),
        ("warning at 61", {"a.cpp": planted_function(61)}, "f: 61 lines, aim"),
        ("error at 121", {"a.cpp": planted_function(121)}, "f: 121 lines, at most 120"),
        ("limit lifts", {"a.cpp": planted_function(150, comment="// limit: one MMA loop.\n")},
         "f: 150 lines, aim"),
        ("limit needs a reason", {"a.cpp": planted_function(150, comment="// limit:\n")},
         "f: 150 lines, at most 120"),
        ("limit ends at 160", {"a.cpp": planted_function(161, comment="// limit: MMA.\n")},
         "f: 161 lines, at most 160"),
        ("method", {"a.cpp": method}, "f: 125 lines, at most 120"),
        ("constructor", {"a.cpp": planted_function(130, constructor)}, "A: 130 lines, at most"),
        ("operator", {"a.cpp": planted_function(130, "int operator()(int a) const")},
         "operator(): 130 lines"),
        ("test body", {"a.cpp": planted_function(130, "TEST(A, B)")}, "TEST: 130 lines, at most"),
        ("template", {"a.cpp": planted_function(130, "template <class T>\nauto f(T t) -> int")},
         "f: 131 lines, at most"),
        ("braces in text", {"a.cpp": planted_function(40).replace(
            "g();", "g(\"}}\"); // }}\n    h('}');", 3) + planted_function(125, "int k()")},
         "k: 125 lines"),
        ("python", {"a.py": "def f():\n" + "    g()\n" * 125}, "f: 126 lines, at most 120"),
        ("parameters", {"a.cpp": planted_function(3, seven)}, "f: 7 parameters"),
        ("template parameters", {"a.cpp": planted_function(
            3, "template <int A, int B, int C, int D, int E>\nint f()")}, "f: 5 template"),
        ("file warning", {"a.hpp": "int a;\n" * 501}, "501 lines, aim"),
        ("file error", {"a.hpp": "int a;\n" * 801}, "801 lines, at most 800"),
        ("columns", {"a.hpp": "//" + "x" * 99 + "\n"}, "101 columns"),
        ("script without a suffix", {"scripts/gpu/a": "#" + "x" * 100 + "\n"}, "101 columns"),
        ("ASCII", {"a.hpp": "// caf\u00e9\n"}, "outside ASCII"),
        ("enum and table", {"a.cpp": "enum class E {\n" + "k,\n" * 130 + "};\n"
                            "constexpr int t[] = {\n" + "1,\n" * 130 + "};\n"}, None),
    ]


def main():
    if "--self-test" in sys.argv[1:]:
        return source_tree.run_self_test(lambda root: sum(judge(root), []), self_test_cases())
    errors, warnings = judge(source_tree.ROOT)
    for message in warnings:
        print(f"warning: {message}")
    for message in errors:
        print(f"error: {message}")
    print(f"limits: {len(errors)} errors, {len(warnings)} warnings")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
