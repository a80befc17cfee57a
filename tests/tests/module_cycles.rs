//! Import cycles among the modules of each crate. `module_cycles.txt` lists those that are left: no module may join one,
//! and one that was opened stays open. Tests are not looked at, for they may use what they test.
#![allow(
    clippy::unwrap_used,
    reason = "a panic here is the report; the lint knows test functions but not their helpers"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

/// Which modules at the top of a crate each of them names, by the name of the module.
type Imports = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Whether the item is compiled for tests only.
fn only_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|condition| condition == "test")
    })
}

/// Collects the modules at the top of the crate that the code of one module names.
struct Names<'a> {
    /// Where the code stands, from the root of the crate.
    module: Vec<String>,
    /// Names that the root of the crate exports again, and the module that each comes from.
    exports: &'a BTreeMap<String, String>,
    found: BTreeSet<String>,
}

impl Names<'_> {
    /// Takes in a path that begins with `crate`, `self` or `super`; any other names no module of this crate.
    fn path(&mut self, segments: &[String]) {
        let mut place = match segments.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("self" | "super") => self.module.clone(),
            _ => return,
        };
        for segment in segments {
            match segment.as_str() {
                "crate" | "self" => {}
                "super" => {
                    place.pop();
                }
                name => place.push(name.to_owned()),
            }
        }
        if let Some(name) = place.first() {
            self.found.insert(self.exports.get(name).unwrap_or(name).clone());
        }
    }

    fn tree(&mut self, before: &mut Vec<String>, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.tree(before, &path.tree);
                before.pop();
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(before, tree)),
            syn::UseTree::Name(syn::UseName { ident })
            | syn::UseTree::Rename(syn::UseRename { ident, .. }) => {
                before.push(ident.to_string());
                self.path(before);
                before.pop();
            }
            syn::UseTree::Glob(_) => self.path(before),
        }
    }
}

impl<'ast> Visit<'ast> for Names<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes: &[syn::Attribute] = match item {
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            _ => &[],
        };
        if !only_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.module.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.tree(&mut Vec::new(), &item.tree);
    }

    /// What macros are given is not parsed, so its paths are found by their tokens.
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let tokens = call.tokens.to_string();
        let words: Vec<&str> = tokens.split_whitespace().collect();
        let begins = |at: &usize| {
            matches!(words[*at], "crate" | "super" | "self") && (*at == 0 || words[at - 1] != "::")
        };
        for at in (0..words.len()).filter(begins) {
            let rest = words[at..].chunks(2).take_while(|pair| pair.len() == 2 && pair[1] == "::");
            let count = rest.count();
            let segments: Vec<String> =
                words[at..].iter().step_by(2).take(count + 1).map(|word| (*word).to_owned()).collect();
            if segments.len() > 1 {
                self.path(&segments);
            }
        }
        visit::visit_macro(self, call);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.path(&segments);
        visit::visit_path(self, path);
    }
}

/// The names that a crate's root exports again from its own modules.
fn exports(root: &syn::File) -> BTreeMap<String, String> {
    fn leaves(module: &str, tree: &syn::UseTree, into: &mut BTreeMap<String, String>) {
        match tree {
            syn::UseTree::Path(path) => leaves(module, &path.tree, into),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(module, tree, into)),
            syn::UseTree::Name(name) => {
                into.insert(name.ident.to_string(), module.to_owned());
            }
            syn::UseTree::Rename(name) => {
                into.insert(name.rename.to_string(), module.to_owned());
            }
            syn::UseTree::Glob(_) => {}
        }
    }
    let declared = |item: &syn::Item| match item {
        syn::Item::Mod(module) => Some(module.ident.to_string()),
        _ => None,
    };
    let modules: BTreeSet<String> = root.items.iter().filter_map(declared).collect();
    let mut names = BTreeMap::new();
    for item in &root.items {
        let syn::Item::Use(syn::ItemUse { tree: syn::UseTree::Path(path), .. }) = item else { continue };
        let (mut module, mut tree) = (path.ident.to_string(), &*path.tree);
        if let ("self" | "crate", syn::UseTree::Path(inner)) = (module.as_str(), tree) {
            (module, tree) = (inner.ident.to_string(), &inner.tree);
        }
        if modules.contains(&module) {
            leaves(&module, tree, &mut names);
        }
    }
    names
}

/// The Rust files below a directory, without those that hold tests only.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if name == "tests" || name.ends_with("_tests") {
            continue;
        }
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Where the code of a file stands, from the root of its crate; empty for the root itself.
fn module_of(source: &Path, file: &Path) -> Vec<String> {
    let mut module: Vec<String> = file
        .strip_prefix(source)
        .unwrap()
        .with_extension("")
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    if module.last().is_some_and(|last| last == "mod")
        || matches!(module.as_slice(), [only] if only == "lib" || only == "main")
    {
        module.pop();
    }
    module
}

fn imports(source: &Path) -> Imports {
    let mut files = Vec::new();
    sources(source, &mut files);
    let parsed: Vec<(Vec<String>, syn::File)> = files
        .iter()
        .map(|file| {
            let text = fs::read_to_string(file).unwrap();
            let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            (module_of(source, file), parsed)
        })
        .collect();
    let roots = parsed.iter().filter(|(module, _)| module.is_empty());
    let exports: BTreeMap<String, String> = roots.flat_map(|(_, root)| exports(root)).collect();
    let top: BTreeSet<String> = parsed.iter().filter_map(|(module, _)| module.first().cloned()).collect();
    let mut imports = Imports::new();
    for (module, file) in &parsed {
        // The root assembles the crate: what it names is no import of a module.
        let Some(name) = module.first() else { continue };
        let mut names = Names { module: module.clone(), exports: &exports, found: BTreeSet::new() };
        names.visit_file(file);
        let others = names.found.into_iter().filter(|other| other != name && top.contains(other));
        imports.entry(name.clone()).or_default().extend(others);
    }
    imports
}

/// Everything that can be reached from a module.
fn reached<'a>(imports: &'a Imports, from: &'a str) -> BTreeSet<&'a str> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        for next in imports.get(module).into_iter().flatten() {
            if seen.insert(next.as_str()) {
                open.push(next);
            }
        }
    }
    seen
}

/// The sets of modules in which each reaches every other.
fn cycles(imports: &Imports) -> BTreeSet<BTreeSet<String>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|module| (module.as_str(), reached(imports, module))).collect();
    let mut cycles = BTreeSet::new();
    for (module, from) in reach.iter().filter(|(module, from)| from.contains(*module)) {
        let mutual = from.iter().filter(|other| reach.get(*other).is_some_and(|back| back.contains(module)));
        cycles.insert(mutual.map(|other| (*other).to_owned()).collect());
    }
    cycles
}

fn crates() -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .chain([root().join("chaos"), root().join("benches")])
        .filter(|path| path.join("src").is_dir())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), path.join("src")))
        .collect();
    found.sort();
    found
}

const HEADER: &str = "\
# Sets of modules, at the top of a crate, in which each imports every other by some way. Compared by
# tests/tests/module_cycles.rs, which UPDATE_EXPECT=1 lets write this file: it may only become shorter.
";

fn describe(found: &[(String, BTreeSet<BTreeSet<String>>)]) -> String {
    let mut text = String::from(HEADER);
    for (name, cycles) in found {
        for cycle in cycles {
            let modules: Vec<&str> = cycle.iter().map(String::as_str).collect();
            writeln!(text, "{name} ({}): {}", cycle.len(), modules.join(" ")).unwrap();
        }
    }
    text
}

#[test]
fn no_module_joins_an_import_cycle() {
    let found: Vec<(String, BTreeSet<BTreeSet<String>>)> =
        crates().into_iter().map(|(name, source)| (name, cycles(&imports(&source)))).collect();
    assert!(found.len() > 20, "the crates are not where they are looked for");
    let (actual, kept) = (describe(&found), root().join("tests/tests/module_cycles.txt"));
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&kept, &actual).unwrap();
    }
    let expected = fs::read_to_string(&kept).unwrap();
    assert!(
        expected == actual,
        "the import cycles are others than in {}.\nIf modules left a cycle, run this test with UPDATE_EXPECT=1. \
         If one joined, let it import less.\nwritten down:\n{expected}\nfound:\n{actual}",
        kept.display()
    );
}

#[test]
fn a_cycle_is_found_through_other_modules_exports_and_parents() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("lib.rs", "mod a; mod b; mod c; mod d; pub use b::Thing;");
    write("a.rs", "use crate::Thing; fn f() -> Thing { Thing }");
    write("b/mod.rs", "mod inner; pub struct Thing;");
    write("b/inner.rs", "fn g() { super::super::c::h(); }");
    write("c.rs", "pub fn h() {} fn i() { let _ = crate::a::f; }");
    write("d.rs", "use crate::a; #[cfg(test)] mod tests { use crate::e; }");
    let found = imports(directory.path());
    assert_eq!(
        cycles(&found),
        BTreeSet::from([BTreeSet::from(["a", "b", "c"].map(str::to_owned))]),
        "{found:?}"
    );
    write("c.rs", "pub fn h() {} fn i() { println!(\"{}\", crate::a::f()); }");
    assert_eq!(cycles(&imports(directory.path())).len(), 1, "what macros are given counts");
    write("c.rs", "pub fn h() {} #[cfg(test)] mod tests { use crate::a; }");
    assert_eq!(cycles(&imports(directory.path())), BTreeSet::new());
}
