"""A kernel is optimised once, inside of what Python calls.

numba gives each function machine code of its own, after it optimised the function together with all that it calls: a
helper five calls down is optimised six times, five of them in vain. Here a kernel that another kernel calls is a
*part*: code as numba wrote it, without wrapper, optimisation, machine code or file in the cache. What Python calls is a
*whole*: it links its parts and theirs, and is optimised and compiled. The same kernel may be both.

Most kernels own no memory: their arrays are the caller's, who holds them until the call is over. Counting references to
them would be a quarter of all code, with a branch at each assignment. So a kernel that makes no arrays and hands none
back does not count; all others do, and whoever takes arrays from them.

This rests on private parts of numba (`CPUCodeLibrary`, `Dispatcher`, `CallStack`), so it is done for versions that were
tested; others compile kernels their own way, to the same bits.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from types import CodeType
from typing import Any

from numba.core import codegen, compiler, dispatcher, errors, registry, typing
from numba.core.targetconfig import ConfigStack

ARRAY_MAKERS = {"arange", "array", "borrowed", "copy", "empty", "empty_like", "full", "sort", "zeros", "zeros_like"}
IS_PART = {"no_compile": True, "no_cpython_wrapper": True}


class KernelCode(codegen.JITCodeLibrary):
    """The code of one kernel for one signature, as it was written."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        self._raise_if_finalized()
        self._finalized = True

    def own_module(self) -> Any:
        """To be linked beside the modules of those that it calls."""
        return super()._get_module_for_linking()

    def _get_module_for_linking(self) -> Any:
        """With those that it calls: for functions that are not kernels of ours."""
        module = self.own_module().clone()
        for library in _callers_first(self._linking_libraries):
            module.link_in(_module(library), preserve=True)
        return module


class Whole(codegen.JITCodeLibrary):
    """A kernel that Python calls, with its parts."""

    def finalize(self) -> None:
        for library in _callers_first(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(_module(library), preserve=True)
        self._linking_libraries.clear()
        super().finalize()


def _module(library: codegen.CodeLibrary) -> Any:
    return library.own_module() if isinstance(library, KernelCode) else library._get_module_for_linking()


def _callers_first(libraries: Iterable[codegen.CodeLibrary]) -> list[codegen.CodeLibrary]:
    """The libraries and what their parts call, directly or not. LLVM links of a module what is called so far."""
    done: dict[codegen.CodeLibrary, None] = {}

    def visit(library: codegen.CodeLibrary) -> None:
        if library not in done:
            for called in library._linking_libraries if isinstance(library, KernelCode) else ():
                visit(called)
            done[library] = None

    for library in libraries:
        visit(library)
    return list(done)[::-1]


class _PartCompiler(dispatcher._FunctionCompiler):
    def plain(self, args: Any) -> Any:
        """The part without counts, or None if that can't be."""
        return self._without_counts(args, None, KernelCode, **IS_PART)

    def counting(self, args: Any) -> Any:
        return self._compiled(args, None, KernelCode, nrt=True, **IS_PART)

    def _without_counts(self, args: Any, return_type: Any, library_class: type, **how: bool) -> Any:
        if ARRAY_MAKERS.isdisjoint(_names(self.py_func.__code__)):
            with suppress(errors.NumbaError):  # numba refuses what makes arrays by other names
                return self._compiled(args, return_type, library_class, nrt=False, **how)
            self.targetdescr.typing_context.callstack._fail_cache.clear()
        return None

    def _compiled(self, args: Any, return_type: Any, library_class: type, **how: bool) -> Any:
        flags = compiler.Flags()
        self.targetdescr.options.parse_as_flags(flags, self.targetoptions)
        for name, value in {"no_cfunc_wrapper": True, **how}.items():
            setattr(flags, name, value)
        target = self.targetdescr.target_context if flags.nrt else _target_without_counts()
        library = library_class(target.codegen(), self.py_func.__qualname__)
        library.enable_object_caching()
        typer, pipeline = self.targetdescr.typing_context, self.pipeline_class
        return compiler.compile_extra(
            typer, target, self.py_func, args, return_type, flags, self.locals, library, pipeline
        )


@cache
def _target_without_counts() -> Any:
    """numba's own subroutines count as their first caller did, and it keeps them: those of others are others."""
    return registry.cpu_target.target_context.subtarget(cached_internal_func={})


def _names(code: CodeType) -> Iterator[str]:
    """All names that the code, or code within it, looks up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def holds_arrays(made: Any) -> bool:
    """Whether what a compiled function hands back has arrays in it."""
    model = made.target_context.data_model_manager[made.signature.return_type]
    return bool(model.contains_nrt_meminfo())


@contextmanager
def without_collections() -> Iterator[None]:
    """Python's collector looks through all objects of PyMC again and again while numba makes its own, most of which
    stay: a tenth of the time. What a kernel leaves behind is collected after it. One thread at a time compiles.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _WholeCompiler(_PartCompiler):
    @without_collections()
    def _compile_core(self, args: Any, return_type: Any) -> Any:
        made = self._without_counts(args, return_type, Whole)
        if made is None or holds_arrays(made):  # Python counts what it is given
            made = self._compiled(args, return_type, Whole, nrt=True)
        for environment in made._find_referenced_environments():  # the globals of its parts
            made.codegen.set_env(environment.env_name, environment)
        return made


class Kernel(registry.CPUDispatcher):
    """numba's dispatcher: a call from Python gets a whole, from a kernel a part, each compiled at the first."""

    def __init__(self, py_func: Any, locals: Any = None, targetoptions: Any = None) -> None:
        super().__init__(py_func, locals, targetoptions)
        own = (py_func, self.targetdescr, self.targetoptions, self.locals, compiler.Compiler)
        self._compiler, self._part_compiler = _WholeCompiler(*own), _PartCompiler(*own)
        self._plain: dict[tuple[Any, ...], Any] = {}
        self._counting: dict[tuple[Any, ...], Any] = {}

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """numba's question: how a caller in compiled code calls it."""
        pysig, args = self._compiler.fold_argument_types(args, kws)
        part, name = self._part(tuple(args)), self.py_func.__name__
        template = typing.make_concrete_template(f"CallTemplate({name})", key=name, signatures=[part.signature])
        return template, pysig, args, {}

    def get_overload(self, sig: Any) -> Any:
        """numba's question: which code that is."""
        return self._part(tuple(sig)).library

    def _part(self, args: tuple[Any, ...]) -> Any:
        """For the kernel that is being compiled: whether it counts, too, matters for arrays that it is handed."""
        caller_counts = ConfigStack().top().nrt
        part = self._kept(self._plain, self._part_compiler.plain, args)
        if part is not None and not (caller_counts and holds_arrays(part)):
            return part
        part = self._kept(self._counting, self._part_compiler.counting, args)
        if holds_arrays(part) and not caller_counts:
            raise errors.TypingError(f"{self.py_func.__name__} hands back arrays that have to be counted")
        return part

    def _kept(self, parts: dict[tuple[Any, ...], Any], make: Callable, args: tuple[Any, ...]) -> Any:
        if args not in parts:
            with self._compiling_counter:
                part = make(args)
            if part is not None:
                self.targetctx.insert_user_function(part.library, part.fndesc, [part.library])
            parts[args] = part
        return parts[args]


class Choice(Kernel):
    """One of several kernels, by the class of the argument at a place. It is no code of its own."""

    def __init__(self, py_func: Any, place: int, kernels: Mapping[type, Kernel]) -> None:
        super().__init__(py_func, targetoptions={"nopython": True})
        self._place, self._kernels = place, kernels

    def __call__(self, *arguments: Any) -> Any:
        return self._kernels[type(arguments[self._place])](*arguments)

    def _part(self, args: tuple[Any, ...]) -> Any:
        return self._kernels[args[self._place].instance_class]._part(args)
