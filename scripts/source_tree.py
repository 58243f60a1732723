"""What the gate scripts share: the files of the tree, their text, and what an #include names."""

import re
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE_SUFFIXES = {".hpp", ".cpp", ".cuh", ".cu", ".h"}
SKIPPED_DIRS = {"build", ".git", ".device-out", "third_party", "__pycache__", "shared"}
# Written by cmake/gcmoe_generated.cmake.
GENERATED_HEADERS = {"gcmoe_version.hpp", "gcmoe_suites.hpp"}

INCLUDE_LINE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def project_files(root=ROOT, suffixes=SOURCE_SUFFIXES):
    """Files of the working tree with one of the suffixes, relative to root, sorted."""
    found = []
    pending = [Path(root)]
    while pending:
        for entry in sorted(pending.pop().iterdir()):
            if entry.is_symlink():
                continue
            if entry.is_dir():
                if entry.name not in SKIPPED_DIRS and not entry.name.startswith("build-"):
                    pending.append(entry)
            elif entry.suffix in suffixes:
                found.append(entry.relative_to(root))
    return sorted(found)


def read_text(root, path):
    """The text of a file; bytes that are not UTF-8 become replacement characters."""
    return (Path(root) / path).read_text(encoding="utf-8", errors="replace")


def without_comments(text):
    """text with comments and the contents of literals blanked; line breaks stay where they are."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"'
        r'|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Za-z_])\'(?:\\.|[^\'\\\n])*\'',
        re.DOTALL)

    def blank(match):
        whole = match.group(0)
        if whole.startswith("/"):
            return re.sub(r"[^\n]", " ", whole)
        return '"' + re.sub(r"[^\n]", " ", whole[1:-1]) + '"'

    return pattern.sub(blank, text)


def includes(text):
    """(line number, name, is_quoted) of every #include line."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = INCLUDE_LINE.match(line)
        if match:
            found.append((number, match.group(1) or match.group(2), match.group(1) is not None))
    return found


def resolve(root, including_file, name):
    """The project file that a quoted include names, relative to root, or None."""
    root = Path(root)
    folders = [including_file.parent, Path("include"), Path("src"), Path(".")]
    if Path(including_file).parts[0] == "tests":
        folders.append(Path("tests"))
    for folder in folders:
        candidate = root / folder / name
        if candidate.is_file():
            return candidate.resolve().relative_to(root.resolve())
    return None


def run_self_test(check, cases):
    """Plants each case's files in an empty tree; check(root) must report what the case expects.

    cases: (title, {path: text}, substring of the expected message, or None for a clean tree).
    check returns a list of messages. Returns the process's exit status.
    """
    bad = 0
    for title, files, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            for path, text in files.items():
                target = Path(folder) / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(text.encode("utf-8"))
            messages = check(Path(folder))
        if expected is None:
            caught = not messages
        else:
            caught = any(expected in message for message in messages)
        if not caught:
            bad += 1
            print(f"self-test: '{title}' expected {expected!r}, got {messages}")
    print(f"self-test: {len(cases) - bad} of {len(cases)} planted cases judged right")
    return 1 if bad else 0

