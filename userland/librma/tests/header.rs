// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Compares the headers with the libraries. A C compiler checks values and layouts. The exported
//! symbols must be those that the headers declare. The test also links and runs a C program that
//! uses every function.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../include")
}

/// Returns the directory of librma.so, which is the parent of this test's directory.
fn libraries() -> PathBuf {
    let mut dir = std::env::current_exe().unwrap();
    dir.pop();
    dir.pop();
    dir
}

fn run(command: &mut Command) -> String {
    let out = command.output().unwrap();
    assert!(
        out.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap()
}

fn compiler(language: &str, standard: &str) -> Command {
    let mut cc = Command::new("cc");
    cc.args([
        "-x",
        language,
        standard,
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-I",
    ])
    .arg(include());
    cc
}

/// Returns the names of the functions and constants that a header declares.
fn declared(header: &str, prefix: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(include().join(header)).unwrap();
    let text = text.replace('\n', " ");
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let functions = text.match_indices(prefix).filter_map(|(at, _)| {
        let name: String = text[at..].chars().take_while(|c| is_name(*c)).collect();
        let starts = !text[..at].ends_with(is_name);
        // Comments in headers write functions with empty parentheses.
        let rest = &text[at + name.len()..];
        (starts && rest.starts_with('(') && !rest.starts_with("()")).then_some(name)
    });
    let constants = text
        .split(';')
        .filter(|s| s.contains("extern const"))
        .filter_map(|s| s.split_whitespace().last().map(String::from));
    functions.chain(constants).collect()
}

#[test]
fn values_and_layouts_are_those_of_the_public_interface() {
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/layout.c");
    for (language, standard) in [("c", "-std=c11"), ("c++", "-std=c++17")] {
        let object = dir.path().join("layout.o");
        run(compiler(language, standard)
            .arg("-c")
            .arg(&source)
            .arg("-o")
            .arg(&object));
    }
}

#[test]
fn libraries_export_what_their_headers_declare_and_nothing_else() {
    for (header, library, prefix) in [
        ("rma2.h", "librma.so", "rma2_"),
        ("velo.h", "libvelo.so", "velo_"),
        ("smfu.h", "libsmfu.so", "smfu_"),
    ] {
        let path = libraries().join(library);
        if library != "librma.so" && !path.exists() {
            // Cargo always builds librma.so, which belongs to this package. It builds this library
            // only with the whole workspace.
            continue;
        }
        let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&path));
        let exported: BTreeSet<String> = symbols
            .lines()
            .filter_map(|l| l.split_whitespace().nth(2))
            .map(String::from)
            .collect();
        let declared = declared(header, prefix);
        assert!(declared.len() >= 8, "{declared:?}");
        assert_eq!(exported, declared, "{library} against {header}");
    }
    let dynamic = run(Command::new("readelf")
        .arg("-d")
        .arg(libraries().join("librma.so")));
    assert!(dynamic.contains("soname: [librma.so.2]"), "{dynamic}");
}

#[test]
fn a_c_program_links_and_gets_an_answer_without_a_device() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("all");
    let mut source = String::from("#include \"rma2.h\"\n#include <signal.h>\nvoid *all[] = {\n");
    for name in declared("rma2.h", "rma2_") {
        source += &format!("\t(void *)&{name},\n");
    }
    source += "};\nint main(void)\n{\n\tRMA2_Port port;\n\tRMA2_ERROR rc = rma2_open(&port);\n\
               \trma2_perror(rc, \"open\");\n\
               \t/* stderr is a closed pipe: the program must not be terminated. */\n\
               \tint ends[2];\n\tsignal(SIGPIPE, SIG_IGN);\n\tif (pipe(ends) || close(ends[0]) || dup2(ends[1], 2) < 0)\n\
               \t\treturn 2;\n\trma2_perror(rc, \"open\");\n\trma2_perror(rc, 0);\n\treturn rc == RMA2_ERR_NO_DEVICE ? 0 : 1;\n}\n";
    let file = dir.path().join("all.c");
    std::fs::write(&file, source).unwrap();
    run(Command::new("cc")
        .args(["-Wall", "-Werror", "-I"])
        .arg(include())
        .arg(&file)
        .arg("-o")
        .arg(&program)
        .arg(libraries().join("librma.so")));
    // The program is linked to the soname, which differs from the file name.
    std::os::unix::fs::symlink(
        libraries().join("librma.so"),
        dir.path().join("librma.so.2"),
    )
    .unwrap();
    run(Command::new(&program)
        .env("LD_LIBRARY_PATH", dir.path())
        .env("EXTOLL_DEV", "/nonexistent"));
}

/// The test program uses every function of the lists. It does not include <string.h>, because
/// rma2.h must include it, as the public rma2.h does.
#[test]
fn lists_work_as_programs_of_the_public_library_use_them() {
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/list.c");
    for (language, standard) in [("c", "-std=c11"), ("c++", "-std=c++17")] {
        let program = dir.path().join("list");
        run(compiler(language, standard)
            .args(["-fsanitize=undefined", "-fno-sanitize-recover"])
            .arg(&source)
            .arg("-o")
            .arg(&program));
        assert_eq!(run(&mut Command::new(&program)), "ok\n");
    }
}

/// Programs may copy notifications to any address.
#[test]
fn notifications_are_read_at_odd_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("odd.c"), dir.path().join("odd"));
    std::fs::write(
        &source,
        "#include <rma2.h>\n\
         struct { char byte; RMA2_Notification n[2]; } odd;\n\
         int main(void)\n{\n\
         \todd.n[0].word0.value = 0x1122334455667788;\n\
         \todd.n[0].word1.value = 4ull << 48 | 5ull << 51;\n\
         \treturn (uintptr_t)&odd.n[0] % 2 == 0 || rma2_noti_dup(&odd.n[0], &odd.n[1]) ||\n\
         \t       memcmp(&odd.n[0], &odd.n[1], sizeof(odd.n[0])) ||\n\
         \t       rma2_noti_get_notiput_payload(&odd.n[1]) != 0x1122334455667788;\n}\n",
    )
    .unwrap();
    run(compiler("c", "-std=c11")
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .arg(format!("-Wl,-rpath,{}", dir.path().display()))
        .args(["-x", "none"])
        .arg(libraries().join("librma.so")));
    std::os::unix::fs::symlink(
        libraries().join("librma.so"),
        dir.path().join("librma.so.2"),
    )
    .unwrap();
    run(&mut Command::new(&program));
}
