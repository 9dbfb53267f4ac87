#!/usr/bin/env python3
"""Runs the op tests on the emulated GPU and looks at what it was asked for:
emulated_run.py --module FILE --tests FILE --folder DIR plain|rest|orders|resources [--races] [--library FILE]

plain      the tests of `orders` once
rest       the tests that `orders` leaves out, but for those that only a GPU has the time for
orders     the tests in several orders of threads, blocks and streams: copies to the host have the same bits. With --races, which
           wants kernels that are compiled for it, the first of them looks for races, too
resources  the launches of `orders` with the registers, shared memory and launch bounds of the kernels of LIBRARY, as compiled for a GPU:
           they fit every GPU from sm_80 on. Skips (77) without cuobjdump and c++filt.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

# What is of the size of real models is left to real GPUs.
FOR_GPUS = ['RealModels*', 'FastAndPlain*', 'TheSameBits*', 'Longest/CpuCachedAttention*']
# Tests that take long, or have no order of their own: where ranks are threads, logs differ.
IN_ONE_ORDER = ['CudaLayout*', 'CudaRuns*', 'AWholeModel*', 'ShardsOfTheVocabularyMakeTheWhole*', 'Blocks/*', 'ALogitThatIsNotFinite*',
                'CudnnAttention*', 'Long/CpuCachedAttention*', 'ATextDoesNotDependOnThoseBesideIt*']


def any_of(names):
    return ':'.join('*' + name for name in names)


TESTS = '-' + any_of(FOR_GPUS + IN_ONE_ORDER)
REST = any_of(IN_ONE_ORDER) + '-' + any_of(FOR_GPUS)
SEEDS = [0, 1]

KIB = 1024
UNASKED = 48 * KIB
# A block's shared memory when it is asked for; 1 KiB of a multiprocessor's is the system's.
MOST_SHARED = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
REGISTERS = 65536


def run(args, name, variables, tests=TESTS):
    """The tests' log of the emulated GPU, or None where they fail."""
    log = os.path.join(args.folder, name + '.log')
    for path in (log, os.path.join(args.folder, name + '.txt')):
        if os.path.exists(path):
            os.remove(path)
    environment = {key: value for key, value in os.environ.items() if not key.startswith('SHOAL_EMULATED_')}
    environment.update(variables, SHOAL_CUDA_MODULE=args.module, SHOAL_EMULATED_LOG=log)
    with open(os.path.join(args.folder, name + '.txt'), 'w') as output:
        code = subprocess.run([args.tests, '--gtest_filter=' + tests, '--gtest_brief=1'], env=environment, stdout=output,
                              stderr=subprocess.STDOUT).returncode
    if code != 0:
        print(open(os.path.join(args.folder, name + '.txt')).read()[-4000:])
        print(f'{name}: the tests fail ({code})')
        return None
    return open(log).read().splitlines()


def reads_of(log):
    """Of each copy to the host its bits, and the kernels that were launched since the one before."""
    reads, kernels = {}, []
    for line in log:
        words = line.split()
        if words[0] == 'launch':
            kernels.append(words[1])
        else:
            reads[int(words[1])] = (words[2:], kernels)
            kernels = []
    return reads


def variables(args, seed):
    return {'SHOAL_EMULATED_ORDER': str(seed), 'SHOAL_EMULATED_RACES': str(int(args.races and seed == 0))}


def plain(args):
    return 1 if run(args, 'plain', {}) is None else 0


def rest(args):
    return 1 if run(args, 'rest', {}, REST) is None else 0


def orders(args):
    with ThreadPoolExecutor(2) as pool:
        logs = list(pool.map(lambda seed: run(args, f'order{seed}', variables(args, seed)), SEEDS))
    if None in logs:
        return 1
    first, *others = (reads_of(log) for log in logs)
    for seed, other in zip(SEEDS[1:], others):
        for number, (bits, _) in sorted(first.items()):
            if other.get(number, (None, None))[0] == bits:
                continue
            kernels = sorted({kernel for at in range(max(0, number - 2), number + 1) for kernel in first[at][1]})
            print(f'with the order {seed}, copy {number} to the host has other bits. Launched before:', *demangled(kernels), sep='\n  ')
            return 1
        if len(other) != len(first):
            print(f'with the order {seed} there are {len(other)} copies to the host, not {len(first)}')
            return 1
    print(f'{len(first)} copies to the host have the same bits in {len(SEEDS)} orders')
    return 0


def demangled(names):
    if not names or not shutil.which('c++filt'):
        return list(names)
    return subprocess.run(['c++filt'], input='\n'.join(names), capture_output=True, text=True, check=True).stdout.splitlines()


def kernels_of(library):
    """By name, of each architecture that the library is compiled for, registers and static shared memory."""
    text = subprocess.run(['cuobjdump', '--dump-resource-usage', library], capture_output=True, text=True, check=True).stdout
    found, architecture, name = [], None, None
    for line in text.splitlines():
        if match := re.match(r'arch = sm_(\d+)(a?)', line):
            architecture = int(match[1]), bool(match[2])  # and whether the code is for that GPU alone
        elif match := re.match(r' *Function (\S+):', line):
            name = match[1]
        elif match := re.search(r'REG:(\d+).* SHARED:(\d+)', line):
            found.append((name, architecture, int(match[1]), int(match[2])))
    kernels = {}
    for readable, (_, architecture, registers, shared) in zip(demangled([name for name, *_ in found]), found):
        kernels.setdefault(readable, []).append((architecture, registers, shared))
    return kernels


def most_threads_of(library):
    """The most threads of a block, by the names of kernels that have __launch_bounds__."""
    text = subprocess.run(['cuobjdump', '--dump-elf', library], capture_output=True, text=True, check=True).stdout
    found, name, wanted = {}, None, False
    for line in text.splitlines():
        if line.startswith('.nv.info.'):
            name = line.removeprefix('.nv.info.')
        elif 'EIATTR_MAX_THREADS' in line:
            wanted = True
        elif wanted and line.strip().startswith('Value:'):
            found[name] = int(line.split()[1], 16)
            wanted = False
    return dict(zip(demangled(list(found)), found.values()))


def rounded(number, to):
    return -(-number // to) * to


def allocated(registers, threads):
    """Registers of a block: a warp's are given in units of 256, warps four at a time."""
    return rounded(rounded(threads, 32) // 32, 4) * rounded(registers * 32, 256)


def faults(grid, threads, dynamic, asked, architecture, alone, registers, static):
    # From sm_90 on the compiler counts the system's 1 KiB as static.
    shared = dynamic + (static - KIB if architecture >= 90 and static >= KIB else static)
    if asked < dynamic and shared > UNASKED:
        yield f'{shared} bytes of shared memory are not asked for'
    for gpu, most in MOST_SHARED.items():
        if shared > most * KIB and (gpu == architecture or not alone):
            yield f'{shared} bytes of shared memory, of {most} KiB on sm_{gpu}'
    if allocated(registers, threads) > REGISTERS:
        yield f'{registers} registers of {threads} threads'
    if grid[0] > 0x7fffffff or grid[1] > 65535 or grid[2] > 65535 or threads > 1024:
        yield f'a grid of {grid} blocks of {threads} threads'


def resources(args):
    for tool in ('cuobjdump', 'c++filt'):
        if not shutil.which(tool):
            print(f'there is no {tool}')
            return 77
    kernels, most_threads = kernels_of(args.library), most_threads_of(args.library)
    launches = {line for line in open(os.path.join(args.folder, 'order0.log')) if line.startswith('launch')}
    words = [line.split() for line in sorted(launches)]
    names = demangled([word[1] for word in words])
    missing = sorted({name for name in names if name not in kernels})
    problems = [f'{name} is not in the library' for name in missing]
    for name, (_, _, *numbers) in zip(names, words):
        x, y, z, threads, dynamic, asked = map(int, numbers)
        if threads > most_threads.get(name, threads):
            problems.append(f'{name}: {threads} threads, where its __launch_bounds__ allow {most_threads[name]}')
        for (architecture, alone), registers, static in kernels.get(name, []):
            problems += [f'{name} (sm_{architecture}): {fault}'
                         for fault in faults((x, y, z), threads, dynamic, asked, architecture, alone, registers, static)]
    for problem in sorted(set(problems)):
        print(problem)
    print(f'{len(launches)} different launches of {len(set(names))} of {len(kernels)} kernels')
    return 1 if problems else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('what', choices=['plain', 'rest', 'orders', 'resources'])
    for name in ('module', 'tests', 'folder'):
        parser.add_argument('--' + name, required=True)
    parser.add_argument('--library')
    parser.add_argument('--races', action='store_true')
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    return {'plain': plain, 'rest': rest, 'orders': orders, 'resources': resources}[args.what](args)


if __name__ == '__main__':
    sys.exit(main())
