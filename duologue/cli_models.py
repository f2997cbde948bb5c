"""`duologue models`: list, fetch, verify and find model files."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from duologue.errors import ModelError
from duologue.models import Store, stderr_progress
from duologue.models.verify import State

models_app = typer.Typer(no_args_is_help=True, help="List, fetch, verify and find model files.")

Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@models_app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List the models known by name and what is there of them."""
    store = Store.default()
    rows = []
    for name in store.catalogue.names:
        entry, report = store.catalogue[name], store.inspect(name)
        rows.append(
            {
                "name": name,
                "role": entry.role,
                "default": entry.default,
                "size_bytes": entry.size,
                "licence": entry.licence,
                "upstream": entry.upstream,
                "state": report.state.value,
                "path": str(report.path),
            }
        )
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    form = "{:<24}{:<7}{:>9}  {:<9}{:<31}{}"
    typer.echo(form.format("NAME", "ROLE", "SIZE", "STATE", "LICENCE", "WHERE"))
    for row in rows:
        size = f"{row['size_bytes'] / 1e6:.1f} MB"
        where = "-" if row["state"] == State.MISSING else row["path"]
        typer.echo(form.format(row["name"], row["role"], size, row["state"], row["licence"], where))


@models_app.command()
def fetch(names: Names = None) -> None:
    """Fetch models that are not there; without a name, those of the default set-up."""
    store = Store.default()
    refs = names or store.catalogue.default_names
    with stderr_progress() as progress:
        for ref in refs:
            if ref not in store.catalogue:
                store.ensure(ref, progress=progress)
        store.ensure_all([ref for ref in refs if ref in store.catalogue], progress=progress)


@models_app.command()
def verify(names: Names = None, as_json: AsJson = False) -> None:
    """Hash the files of models again; without a name, of all that are there."""
    store = Store.default()
    reports = [store.inspect(name, rehash=True) for name in names or store.catalogue.names]
    if as_json:
        typer.echo(json.dumps([asdict(report) for report in reports], indent=2, default=str))
    else:
        for report in reports:
            typer.echo(f"{report.name}: {'; '.join([report.state, *report.problems])}")
    wrong = [
        r.name for r in reports if r.state is State.DAMAGED or (names and r.state is State.MISSING)
    ]
    if wrong:
        raise ModelError(
            f"not whole in {store.root}: {', '.join(wrong)}. "
            f"Run `duologue models fetch {' '.join(wrong)}`."
        )


@models_app.command()
def path(name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)]) -> None:
    """Print the folder of a model that is there."""
    typer.echo(Store.default().ensure(name, offline=True))
