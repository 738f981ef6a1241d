//! Tests of the plugin in QEMU. The firmware executes a known number of instructions: it enters
//! 64-bit mode and loops first in the lower, then in the upper half of the address space.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum time for QEMU to start and to execute the firmware.
const PATIENCE: Duration = Duration::from_secs(60);
const SIZE: usize = 0x1_0000;
/// Offset in the firmware of the 64-bit code for the lower half.
const LOW: usize = 0x100;
const HIGH: usize = 0x200;
const TABLE: usize = 0x300;
const RESET: usize = 0xfff0;
/// Instructions in the lower half outside the loop: 1 jump at the reset vector, 15 until the CPU
/// enters 64-bit mode, and 3 in that mode.
const BEFORE: u64 = 1 + 15 + 3;
/// Instructions in the upper half outside the loop.
const AFTER: u64 = 3;

fn put(rom: &mut [u8], at: usize, parts: &[&[u8]]) {
    let code = parts.concat();
    rom[at..at + code.len()].copy_from_slice(&code);
}

/// Returns machine code for `mov ecx, turns` and a loop of two instructions that runs `turns`
/// times.
fn turns(turns: u32) -> Vec<u8> {
    let [a, b, c, d] = turns.to_le_bytes();
    vec![0xb9, a, b, c, d, 0xff, 0xc9, 0x75, 0xfc]
}

/// Returns the firmware, which is mapped below 4 GiB, at 0xffff0000.
fn rom(low: u32, high: u32) -> Vec<u8> {
    let mut rom = vec![0xf4; SIZE];
    put(&mut rom, RESET, &[&[0xe9, 0x0d, 0x00]]); // jmp 0
    put(
        &mut rom,
        0,
        &[
            // Page tables map the fourth gigabyte to its own address and to 0xffff8000_00000000 + 3
            // GiB.
            &[0x66, 0xc7, 0x06, 0x00, 0x10, 0x03, 0x20, 0x00, 0x00], // mov dword [0x1000], 0x2003
            &[0x66, 0xc7, 0x06, 0x00, 0x18, 0x03, 0x20, 0x00, 0x00], // mov dword [0x1800], 0x2003
            &[0x66, 0xc7, 0x06, 0x18, 0x20, 0x83, 0x00, 0x00, 0xc0], // mov dword [0x2018], 0xc0000083
            &[0x66, 0xb8, 0x00, 0x10, 0x00, 0x00],                   // mov eax, 0x1000
            &[0x0f, 0x22, 0xd8],                                     // mov cr3, eax
            &[0x66, 0xb8, 0x20, 0x00, 0x00, 0x00],                   // mov eax, PAE
            &[0x0f, 0x22, 0xe0],                                     // mov cr4, eax
            &[0x66, 0xb9, 0x80, 0x00, 0x00, 0xc0],                   // mov ecx, EFER
            &[0x66, 0xb8, 0x00, 0x01, 0x00, 0x00],                   // mov eax, LME
            &[0x66, 0x31, 0xd2],                                     // xor edx, edx
            &[0x0f, 0x30],                                           // wrmsr
            &[0x2e, 0x66, 0x0f, 0x01, 0x16, 0x10, 0x03],             // lgdt cs:[TABLE + 16]
            &[0x66, 0xb8, 0x01, 0x00, 0x00, 0x80],                   // mov eax, PG | PE
            &[0x0f, 0x22, 0xc0],                                     // mov cr0, eax
            &[0x66, 0xea, 0x00, 0x01, 0xff, 0xff, 0x08, 0x00],       // jmp 8:0xffff0100
        ],
    );
    put(
        &mut rom,
        LOW,
        &[
            &turns(low),
            &[0x48, 0xb8, 0x00, 0x02, 0xff, 0xff, 0x00, 0x80, 0xff, 0xff], // mov rax, 0xffff8000ffff0200
            &[0xff, 0xe0],                                                 // jmp rax
        ],
    );
    put(&mut rom, HIGH, &[&turns(high), &[0xfa, 0xf4]]); // cli; hlt
    put(
        &mut rom,
        TABLE,
        &[
            &[0; 8],
            &[0xff, 0xff, 0x00, 0x00, 0x00, 0x9b, 0xaf, 0x00], // 64-bit code
            &[0x0f, 0x00, 0x00, 0x03, 0xff, 0xff],             // limit and address of the table
        ],
    );
    rom
}

/// Returns the path where cargo puts the plugin: next to the directory of this test.
fn plugin() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let dir = test.parent().and_then(Path::parent).unwrap();
    dir.join("libextoll_insns.so")
}

/// A temporary directory, removed on drop.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("insns-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn qemu(options: &str, rom: &Path) -> Child {
    Command::new("qemu-system-x86_64")
        .args(["-nodefaults", "-no-user-config", "-display", "none"])
        .args(["-machine", "q35,accel=tcg", "-cpu", "max", "-m", "64M"])
        .arg("-bios")
        .arg(rom)
        .arg("-plugin")
        .arg(format!("{},{options}", plugin().display()))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn ask(stream: &mut BufReader<UnixStream>) -> (u64, u64) {
    stream.get_mut().write_all(b"\n").unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["kernel", kernel, "user", user] => (kernel.parse().unwrap(), user.parse().unwrap()),
        _ => panic!("unexpected answer: {line:?}"),
    }
}

/// Runs the firmware in QEMU. Returns the counts after the machine has halted.
fn counted(low: u32, high: u32) -> (u64, u64) {
    let dir = Dir::new(&format!("{low}-{high}"));
    let (image, socket) = (dir.file("rom"), dir.file("socket"));
    std::fs::write(&image, rom(low, high)).unwrap();
    let mut child = qemu(&format!("socket={}", socket.display()), &image);
    let deadline = Instant::now() + PATIENCE;
    let wait = || {
        assert!(Instant::now() < deadline, "QEMU took too long");
        std::thread::sleep(Duration::from_millis(50));
    };
    let stream = loop {
        match UnixStream::connect(&socket) {
            Ok(stream) => break stream,
            Err(_) => wait(),
        }
    };
    let mut stream = BufReader::new(stream);
    let mut last = (0, 0);
    let end = loop {
        let now = ask(&mut stream);
        if now.0 > 2 * u64::from(high) && now == last {
            break now;
        }
        last = now;
        wait();
    };
    child.kill().unwrap();
    child.wait().unwrap();
    end
}

#[test]
fn every_instruction_is_counted_on_its_side() {
    for (low, high) in [(1000, 200_000), (300_000, 1)] {
        let want = (2 * u64::from(high) + AFTER, 2 * u64::from(low) + BEFORE);
        assert_eq!(counted(low, high), want, "{low} and {high} turns");
    }
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let dir = Dir::new("options");
    let image = dir.file("rom");
    std::fs::write(&image, rom(1, 1)).unwrap();
    for (options, why) in [
        ("port=1", "unknown option 'port=1'"),
        ("socket=/nowhere/x", "/nowhere/x: No such file"),
    ] {
        let out = qemu(options, &image).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.contains(why), "{said}");
    }
}
