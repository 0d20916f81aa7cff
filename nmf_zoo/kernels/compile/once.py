"""A kernel is optimised once, inside of what Python calls.

numba gives each function machine code of its own, after it optimised the function together with all that it calls: a
helper five calls down is optimised six times, five of them in vain. Here a kernel that another kernel calls is a
*part*: code as numba wrote it, without wrapper, optimisation, machine code or file in the cache. What Python calls is a
*whole*: it links its parts and theirs, and is optimised and compiled. The same kernel may be both.

This rests on private parts of numba (`CPUCodeLibrary`, `Dispatcher`), so it is done for versions that were tested;
others compile kernels their own way, to the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numba.core import codegen, compiler, dispatcher, registry, typing


class Part(codegen.JITCodeLibrary):
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
    return library.own_module() if isinstance(library, Part) else library._get_module_for_linking()


def _callers_first(libraries: Iterable[codegen.CodeLibrary]) -> list[codegen.CodeLibrary]:
    """The libraries and what their parts call, directly or not. LLVM links of a module what is called so far."""
    done: dict[codegen.CodeLibrary, None] = {}

    def visit(library: codegen.CodeLibrary) -> None:
        if library not in done:
            for called in library._linking_libraries if isinstance(library, Part) else ():
                visit(called)
            done[library] = None

    for library in libraries:
        visit(library)
    return list(done)[::-1]


class _PartCompiler(dispatcher._FunctionCompiler):
    def _compile_core(self, args: Any, return_type: Any) -> Any:
        return self._compiled(args, return_type, Part, no_compile=True, no_cpython_wrapper=True)

    def _compiled(self, args: Any, return_type: Any, library_class: type, **more: bool) -> Any:
        flags = compiler.Flags()
        self.targetdescr.options.parse_as_flags(flags, self.targetoptions)
        for name, value in {"no_cfunc_wrapper": True, **more}.items():
            setattr(flags, name, value)
        target = self.targetdescr.target_context
        library = library_class(target.codegen(), self.py_func.__qualname__)
        library.enable_object_caching()
        typer, pipeline = self.targetdescr.typing_context, self.pipeline_class
        return compiler.compile_extra(
            typer, target, self.py_func, args, return_type, flags, self.locals, library, pipeline
        )


class _WholeCompiler(_PartCompiler):
    def _compile_core(self, args: Any, return_type: Any) -> Any:
        made = self._compiled(args, return_type, Whole)
        for environment in made._find_referenced_environments():  # the globals of its parts
            made.codegen.set_env(environment.env_name, environment)
        return made


class Kernel(registry.CPUDispatcher):
    """numba's dispatcher: a call from Python gets a whole, from a kernel a part, each compiled at the first."""

    def __init__(self, py_func: Any, locals: Any = None, targetoptions: Any = None) -> None:
        super().__init__(py_func, locals, targetoptions)
        own = (py_func, self.targetdescr, self.targetoptions, self.locals, compiler.Compiler)
        self._compiler, self._part_compiler = _WholeCompiler(*own), _PartCompiler(*own)
        self._parts: dict[tuple[Any, ...], Any] = {}

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """numba's question: how a caller in compiled code calls it."""
        pysig, args = self._compiler.fold_argument_types(args, kws)
        self._make_part(tuple(args))
        name = self.py_func.__name__
        signatures = [part.signature for part in self._parts.values()]
        template = typing.make_concrete_template(f"CallTemplate({name})", key=name, signatures=signatures)
        return template, pysig, args, {}

    def get_overload(self, sig: Any) -> Any:
        """numba's question: which code that is."""
        return self._parts[tuple(sig)].library

    def _make_part(self, args: tuple[Any, ...]) -> None:
        if args not in self._parts:
            with self._compiling_counter:
                part = self._part_compiler.compile(args, None)
            self.targetctx.insert_user_function(part.library, part.fndesc, [part.library])
            self._parts[args] = part
