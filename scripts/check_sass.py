#!/usr/bin/env python3
"""Role 2's machine code: FP4 weights go from the decode to the tensor core in registers.

Looked at is every QGMMA of a role2_kernel whose A is E5M2: the routed experts' main loop (the
shared expert's A is E4M3 and is not decoded). For each of them:

  1. A is a register (`QGMMA... R24, R44, gdesc[UR16], ...`), not a descriptor.
  2. On every way through the kernel's branches that leads to it, the four registers of A were last
     written by the decode: by PRMT or LOP3. A plain copy (MOV, IMAD.MOV) is followed to its source,
     a reload from local memory (LDL) to what was stored there (STL); the reloads are counted and
     printed. A predicated instruction may not have run: those before it must hold as well.
  3. On none of these ways stands an STS or STSM, of whatever data, or a call, between the first of
     these writes and the QGMMA.

Branches are taken as if any condition could hold: ways that the program never goes are judged too.
A way that leads back to the kernel's first instruction, or to code whose callers are not known
(behind a BRX), without a write is an error.

Local memory is the thread's own spill space; what it costs is held by check_registers.py.

Every instance must have QGMMAs of both kinds, else the check looked at the wrong thing.
"""

import re
import sys

import cuda_objects

ROLE = re.compile(r"^role2_kernel\b")
QGMMA = re.compile(r"^R(\d+), (R(\d+)|gdesc\[\w+\]), gdesc")
LOCAL = re.compile(r"\[R1(?:\+(-?)0x([0-9a-f]+))?\]")
REGISTER = re.compile(r"^R(\d+)(\.\w+)?$")
PREDICATE = re.compile(r"^!?U?P(T|\d+)$")
TARGET = re.compile(r"(?:^|\s)(0x[0-9a-f]+)$")
NO_RESULT = re.compile(r"^(U?[A-Z0-9]*SETP|U?PLOP3|R2P|RET|BRX|JMX|WARPSYNC|NANOSLEEP|ST|STG|STS"
                       r"|STL|STSM|RED|REDG|BAR|CALL)$")
BETWEEN = ("STS", "STSM", "CALL")
ENDS = ("EXIT", "RET", "BRX", "JMX", "KILL")
DECODE = ("PRMT", "LOP3")


def operands_of(instruction):
    return [part.strip() for part in instruction.operands.split(",")]


def written(instruction):
    """The registers that an instruction writes, as a range; empty if none."""
    if NO_RESULT.match(instruction.name):
        return range(0)
    operands = operands_of(instruction)
    while operands and PREDICATE.match(operands[0]):
        operands.pop(0)
    match = REGISTER.match(operands[0]) if operands else None
    if not match:
        return range(0)
    first = int(match.group(1))
    opcode = instruction.opcode
    return range(first, first + width(instruction))


def width(instruction):
    """Number of registers that an instruction writes, or that a load or store moves."""
    opcode = instruction.opcode
    if instruction.name == "QGMMA":
        return int(re.search(r"\.64x(\d+)x", opcode).group(1)) // 2
    if ".128" in opcode:
        return 4
    return 2 if ".64" in opcode or ".WIDE" in opcode or opcode == "CS2R" or opcode[0] == "D" else 1


def local_offset(instruction):
    """Offset of an LDL's or STL's place, or None."""
    match = LOCAL.search(instruction.operands)
    return int((match.group(1) or "") + (match.group(2) or "0"), 16) if match else None


def stored_to(instruction, offset):
    """The register that an STL stores to a local offset, or None."""
    start = local_offset(instruction) if instruction.name == "STL" else None
    match = REGISTER.match(operands_of(instruction)[-1])
    if start is None or not match or not 0 <= offset - start < 4 * width(instruction):
        return None
    return int(match.group(1)) + (offset - start) // 4


def copied_from(instruction):
    """The source register of a plain copy, or None."""
    operands = operands_of(instruction)
    source = operands[-1].replace(".reuse", "")
    if instruction.name == "MOV" or (instruction.opcode.startswith("IMAD.MOV")
                                     and operands[1:3] == ["RZ", "RZ"]):
        match = REGISTER.match(source)
        return int(match.group(1)) if match else None
    return None


def branch_target(instruction):
    match = TARGET.search(instruction.operands)
    return int(match.group(1), 16) if instruction.name == "BRA" and match else None


def falls_through(instruction):
    """False if the next instruction is never the next one to run. (BSYNC stands right before the
    place that its BSSY names, so it falls through; a call returns.)"""
    if instruction.predicate:
        return True
    if instruction.name == "BRA":
        return "," in instruction.operands  # a condition among the operands: `P0, 0x9c0`
    return instruction.name not in ENDS


class Listing:
    """The instructions of one kernel and the ways between them."""

    def __init__(self, code):
        self.code = code
        index = {instruction.address: i for i, instruction in enumerate(code)}
        self.before = [[] for _ in code]  # by instruction: those that may run right before it
        self.reloads = 0
        for i, instruction in enumerate(code):
            target = index.get(branch_target(instruction))
            if target is not None:
                self.before[target].append(i)
            if falls_through(instruction) and i + 1 < len(code):
                self.before[i + 1].append(i)

    def sources(self, i, register, offset):
        """What instruction i means for a value in `register`, or at `offset` of local memory:
        (True if it is a producer, places (register, offset) where the value may be before i)."""
        instruction, here = self.code[i], (register, offset)
        may_skip = [here] if instruction.predicate else []
        if offset is not None:
            stored = stored_to(instruction, offset)
            return False, [here] if stored is None else [(stored, None)] + may_skip
        if register not in written(instruction):
            return False, [here]
        if instruction.name == "LDL" and local_offset(instruction) is not None:
            place = local_offset(instruction) + 4 * (register - written(instruction)[0])
            return False, [(None, place)] + may_skip
        source = copied_from(instruction)
        if source is not None:
            return False, [(source, None)] + may_skip
        return True, may_skip

    def producers(self, at, register):
        """(instructions that last wrote a register, all on the ways from them, True if some way has
        no write), by rule 2."""
        found, on_the_way, lost = set(), set(), False
        left, seen = [(at, register, None)], {(at, register, None)}
        while left:
            i, register, offset = left.pop()
            lost = lost or not self.before[i] or i == 0
            for k in self.before[i]:
                is_producer, places = self.sources(k, register, offset)
                if is_producer:
                    found.add(k)
                if places:
                    on_the_way.add(k)
                self.reloads += sum(offset is None and place is not None for _, place in places)
                for place in places:
                    if (k, *place) not in seen:
                        seen.add((k, *place))
                        left.append((k, *place))
        return found, on_the_way, lost


def judge_qgmma(listing, at):
    """The sentences against one QGMMA."""
    instruction = listing.code[at]
    match = QGMMA.match(instruction.operands)
    if not match or match.group(3) is None:
        return [f"A is not a register: {instruction.operands}"]
    sentences, ways = [], set()
    for register in range(int(match.group(3)), int(match.group(3)) + 4):
        producers, on_the_way, lost = listing.producers(at, register)
        ways |= on_the_way
        if lost:
            sentences.append(f"R{register} of A is written nowhere on some way")
        for producer in (listing.code[i] for i in sorted(producers)):
            if producer.name not in DECODE:
                sentences.append(f"R{register} of A comes from {producer.opcode} at "
                                 f"0x{producer.address:x}, not from PRMT or LOP3")
    for i in sorted(ways):
        if listing.code[i].name in BETWEEN:
            sentences.append(f"{listing.code[i].opcode} at 0x{listing.code[i].address:x} stands "
                             "between the decode and the QGMMA")
    return sentences


def judge(kernel):
    """(errors, counts: routed QGMMAs, shared ones, reloads of A) of one kernel."""
    listing = Listing(kernel.code)
    errors, routed, shared = [], 0, 0
    for i, instruction in enumerate(kernel.code):
        if instruction.name != "QGMMA":
            continue
        if ".E5M2." not in instruction.opcode:
            shared += 1
            continue
        routed += 1
        errors += [f"{kernel.name}: {instruction.opcode} at 0x{instruction.address:x}: {sentence}"
                   for sentence in judge_qgmma(listing, i)]
    if routed == 0 or shared == 0:
        errors.append(f"{kernel.name}: {routed} routed and {shared} shared QGMMAs: none to look at")
    return errors, (routed, shared, listing.reloads)


# ---- self-test ---------------------------------------------------------------------------------

DECODED = """
LDS.128 R16, [R8]
PRMT R44, R34, R29, R9
LOP3.LUT R44, R16, 0x80808080, R44, 0xea, !PT
LOP3.LUT R45, R17, 0x80808080, R45, 0xea, !PT
PRMT R46, R34, R46, R9
LOP3.LUT R47, R47, 0x80808080, R16, 0xea, !PT
"""
MULTIPLY = "QGMMA.64x16x32.F32.E5M2.E4M3 R24, R44, gdesc[UR16], RZ, !UPT, gsb0\n"
SHARED = "QGMMA.64x16x32.F32.E4M3.E4M3 R24, R68, gdesc[UR16], RZ, !UPT\n"
WAIT = "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [R10+URZ], R9\n@!P1 BRA {back}\n"
LOOP = "head:\n" + DECODED + "back:\n" + WAIT + MULTIPLY
END = "ISETP.NE.AND P0, PT, R44, R7, PT\n@P0 BRA {head}\n" + SHARED + "EXIT\n"


def planted(text):
    """A kernel from one instruction a line; `name:` marks a place, {name} its address."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    marks, code = {}, []
    for line in lines:
        if line.endswith(":"):
            marks[line[:-1]] = f"0x{16 * len(code):x}"
        else:
            code.append(line)
    listing = "code for sm_90a\n\tFunction : k\n" + "".join(
        f"        /*{16 * i:04x}*/   {line.format(**marks)} ;  /* 0x0 */\n"
        for i, line in enumerate(code))
    return cuda_objects.Kernel("k", "role2_kernel<x>", 96,
                               cuda_objects.parse_sass(listing, "sm_90a")["k"])


def producer_cases():
    """(title, code, sentence that must come or None): what writes A."""
    return [
        ("decoded in the loop", LOOP + END, None),
        ("store after the multiplication", LOOP + "STS [R3], R24\n" + END, None),
        ("store before the decode", "head:\nSTS [R3], R24\n" + LOOP[6:] + END, None),
        ("decoded behind it, for the next round",
         DECODED + "head:\n" + MULTIPLY + DECODED + END, None),
        ("copied", LOOP.replace("LOP3.LUT R45, R17, 0x80808080, R45, 0xea, !PT",
                                "LOP3.LUT R3, R17, 0x80808080, R45, 0xea, !PT\n"
                                "IMAD.MOV.U32 R45, RZ, RZ, R3") + END, None),
        ("block out of line", LOOP.replace(MULTIPLY, "BRA.DIV UR18, {far}\nnear:\n" + MULTIPLY)
         + END + "far:\nWARPSYNC.COLLECTIVE R3, {near}\nBRA {near}\n", None),
        ("descriptor", LOOP.replace("R24, R44, gdesc", "R24, gdesc[UR8], gdesc") + END,
         "A is not a register"),
        ("store between", LOOP.replace(MULTIPLY, "STS.128 [R3], R44\n" + MULTIPLY) + END,
         "STS.128 at 0x80 stands between"),
        ("store between the producers", LOOP.replace("PRMT R46", "STSM.16.M88 [R3], R9\nPRMT R46")
         + END, "STSM.16.M88 at"),
        ("store behind it, on the way to the next round",
         DECODED + "head:\n" + MULTIPLY + DECODED + "STS [R3], R24\n" + END, "STS at"),
        ("store at the loop's head, after the decode behind it",
         DECODED + "head:\nSTS [R3], R24\n" + MULTIPLY + DECODED + END, "STS at"),
        ("store out of line", LOOP.replace(MULTIPLY, "BRA.DIV UR18, {far}\nnear:\n" + MULTIPLY)
         + END + "far:\nSTS [R3], R9\nBRA {near}\n", "STS at"),
        ("from shared memory", LOOP.replace("PRMT R46, R34, R46, R9", "LDS R46, [R3]") + END,
         "R46 of A comes from LDS"),
        ("wide load over it", LOOP.replace("PRMT R46, R34, R46, R9", "LDS.64 R46, [R3]").replace(
            "LOP3.LUT R47, R47, 0x80808080, R16, 0xea, !PT", "NOP") + END,
         "R47 of A comes from LDS"),
        ("spilled", LOOP.replace("back:", "STL.64 [R1+0x8], R46\nLDL R47, [R1+0xc]\nback:") + END,
         None),
        ("spilled, a store between", LOOP.replace(
            "back:", "STL.64 [R1+0x8], R46\nSTS [R3], R9\nLDL R47, [R1+0xc]\nback:") + END,
         "STS at"),
        ("spilled from a load", LOOP.replace("back:", "LDS R3, [R2]\nSTL [R1+0x8], R3\n"
                                             "LDL R47, [R1+0x8]\nback:") + END,
         "R47 of A comes from LDS"),
        ("reloaded from a place never stored", LOOP.replace(
            "back:", "STL.64 [R1+0x8], R46\nLDL R47, [R1+0x10]\nback:") + END,
         "R47 of A is written nowhere"),
        ("predicated", LOOP.replace("back:", "@P3 LDS R47, [R3]\nback:") + END,
         "R47 of A comes from LDS"),
        ("copied from a load", LOOP.replace("back:", "LDG.E R3, desc[UR4][R8.64]\n"
                                            "MOV R45, R3\nback:") + END, "R45 of A comes from LDG"),
        ("never written", "head:\n" + MULTIPLY + END.replace("R44", "R4"), "is written nowhere"),
    ]


def way_cases():
    """The same: on which ways."""
    return [
        ("decode laid out elsewhere", "BRA {far}\nnear:\n" + MULTIPLY + SHARED + "EXIT\nfar:\n"
         + DECODED + "BRA {near}\n", None),
        ("a way around the decode", "LDS.128 R44, [R8]\n@P2 BRA {near}\n" + DECODED + "near:\n"
         + MULTIPLY + SHARED, "R44 of A comes from LDS.128"),
        ("the same, the condition an operand", "LDS.128 R44, [R8]\nBRA P2, {near}\n" + DECODED
         + "near:\n" + MULTIPLY + SHARED, "R44 of A comes from LDS.128"),
        ("no way around it", "LDS.128 R44, [R8]\nBRA {near}\nEXIT\nnear:\n" + DECODED
         + MULTIPLY + SHARED, None),
        ("store on one of two ways", DECODED + "@P2 BRA {near}\nSTS [R3], R24\nnear:\n"
         + MULTIPLY + SHARED, "STS at"),
        ("call between", DECODED + "CALL.REL.NOINC 0x8000\n" + MULTIPLY + SHARED,
         "CALL.REL.NOINC at"),
        ("spilled on one of two ways", LOOP.replace("back:", "@P2 BRA {near}\nSTL [R1+0x8], R3\n"
                                                    "near:\nLDL R47, [R1+0x8]\nback:") + END,
         "R47 of A is written nowhere"),
        ("copied under a predicate", LOOP.replace("back:", "LDS R3, [R2]\n@P2 MOV R45, R3\nback:")
         + END, "R45 of A comes from LDS"),
        ("behind a jump to anywhere", DECODED + "BRX R4 -0x10\n" + MULTIPLY + SHARED,
         "is written nowhere"),
        ("no routed QGMMA", SHARED + "EXIT\n", "0 routed and 1 shared"),
        ("no shared QGMMA", LOOP + END.replace(SHARED, ""), "1 routed and 0 shared"),
    ]


def self_test():
    cases, bad = producer_cases() + way_cases(), 0
    for title, text, expected in cases:
        errors, _ = judge(planted(text))
        caught = not errors if expected is None else any(expected in error for error in errors)
        if not caught:
            bad += 1
            print(f"self-test: '{title}' expected {expected!r}, got {errors}")
    print(f"self-test: {len(cases) - bad} of {len(cases)} planted cases judged right")
    return 1 if bad else 0


def main():
    if "--self-test" in sys.argv[1:]:
        return self_test()
    kernels, status = cuda_objects.built_kernels("sass")
    if kernels is None:
        return status
    instances = [kernel for kernel in kernels if ROLE.match(kernel.name)]
    errors = [] if instances else ["no role2_kernel in the library"]
    for kernel in instances:
        more, (routed, shared, reloads) = judge(kernel)
        print(f"  {kernel.name:<26} {routed} routed QGMMA ({4 * routed} registers of A, {reloads} "
              f"reloaded from local memory), {shared} shared, {len(more)} errors")
        errors += more
    print("\n".join(errors + [f"sass: {len(instances)} instances, {len(errors)} errors"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
