"""What the gates on built CUDA objects share: cuobjdump, and the kernels that preset
cuda built.

cuobjdump is looked for on the PATH, beside nvcc, and in build/cuda-tools (where ./dev puts it from
the Python package index when this machine's toolkit has none). A gate that finds no cuobjdump or
nothing built ends with SKIPPED, which ./dev counts as a skip.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass, field

import source_tree

SKIPPED = 77
ARCHITECTURE = "sm_90a"
ARCHIVE = "build/cuda/libgcmoe_cuda.a"

ARCH_LINE = re.compile(r"^\s*code for (\S+)|^arch = (\S+)")
FUNCTION_LINE = re.compile(r"^\s*Function\s*:?\s*([\w.$]+):?\s*$")
USAGE_LINE = re.compile(r"REG:(\d+) STACK:(\d+)")
# "        /*17430*/              @!P0 BRA 0x17480 ;      /* 0x... */"
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")


@dataclass
class Instruction:
    address: int
    predicate: str  # "@P0", "@!P1" or ""
    opcode: str     # with its suffixes: "LDS.128"
    operands: str

    @property
    def name(self):
        return self.opcode.split(".")[0]


@dataclass
class Kernel:
    mangled: str
    name: str  # "role2_kernel<false, 16>": without namespaces, without parameters
    registers: int = 0
    code: list = field(default_factory=list)


def find_tool():
    """Path of cuobjdump, or None."""
    found = shutil.which("cuobjdump")
    beside = sorted(source_tree.ROOT.glob("build/cuda-tools/**/bin/cuobjdump"))
    for candidate in (found, "/usr/local/cuda/bin/cuobjdump", *map(str, beside)):
        if candidate and shutil.which(candidate):
            return candidate
    return None


def short_name(demangled):
    """`void a::b::f<false, 16u>(a::P)` -> `f<false, 16>`."""
    text = demangled.replace("(anonymous namespace)::", "")
    depth, end = 0, len(text)
    for index, char in enumerate(text):
        depth += {"<": 1, ">": -1}.get(char, 0)
        if char == "(" and depth == 0:
            end = index
            break
    head = re.sub(r"(\d)u\b", r"\1", text[:end])
    template = head.find("<")
    arguments = head[template:] if template >= 0 else ""
    return re.split(r"::|\s", head[:template] if template >= 0 else head)[-1] + arguments


def demangle(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True,
                          check=True)
    return done.stdout.splitlines()


def parse_usage(text, architecture):
    """mangled name -> registers, from `cuobjdump -res-usage`."""
    found, arch, function = {}, None, None
    for line in text.splitlines():
        if match := ARCH_LINE.match(line):
            arch = match.group(1) or match.group(2)
        elif match := FUNCTION_LINE.match(line):
            function = match.group(1)
        elif (match := USAGE_LINE.search(line)) and function and arch == architecture:
            found[function] = int(match.group(1))
    return found


def parse_sass(text, architecture):
    """mangled name -> instructions, from `cuobjdump -sass`."""
    found, arch, code = {}, None, None
    for line in text.splitlines():
        if match := ARCH_LINE.match(line):
            arch, code = match.group(1) or match.group(2), None
        elif match := FUNCTION_LINE.match(line):
            code = found.setdefault(match.group(1), []) if arch == architecture else None
        elif code is not None and (match := INSTRUCTION.match(line)):
            address, predicate, opcode, operands = match.groups()
            code.append(Instruction(int(address, 16), predicate or "", opcode, operands.strip()))
    return found


def dump(tool, option, path):
    done = subprocess.run([tool, option, str(path)], text=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{tool} {option} {path}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def read_kernels(tool, path, architecture=ARCHITECTURE):
    """Every kernel of an object, archive or executable, by name."""
    usage = parse_usage(dump(tool, "-res-usage", path), architecture)
    sass = parse_sass(dump(tool, "-sass", path), architecture)
    names = sorted(sass)
    kernels = [Kernel(mangled, short_name(name), usage.get(mangled, 0), sass[mangled])
               for mangled, name in zip(names, demangle(names))]
    return sorted(kernels, key=lambda kernel: kernel.name)


def built_kernels(gate):
    """(kernels, None), or (None, exit status) after a line that says why not."""
    tool = find_tool()
    if tool is None:
        print(f"{gate}: skipped: no cuobjdump here, and none in build/cuda-tools")
        return None, SKIPPED
    if not (source_tree.ROOT / ARCHIVE).is_file():
        print(f"{gate}: skipped: no {ARCHIVE}: ./dev build cuda")
        return None, SKIPPED
    return read_kernels(tool, source_tree.ROOT / ARCHIVE), None
