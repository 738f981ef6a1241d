//! Declarations of QEMU's plugin interface, version 7 (include/plugins/qemu-plugin.h,
//! docs/devel/tcg-plugins.rst), that the counters need. This file contains all unsafe code of the
//! plugin.

use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::mem::MaybeUninit;

/// Version of the plugin interface that the declarations below match. QEMU refuses to load plugins
/// for versions that it does not support.
#[no_mangle]
#[allow(non_upper_case_globals)]
pub static qemu_plugin_version: c_int = 7;

/// Name of the only target whose address layout [`crate::is_kernel`] knows.
const TARGET: &[u8] = b"x86_64";

/// Number of CPUs for which QEMU allocates counters at first. QEMU moves the counters when more
/// CPUs appear.
const ROOM: c_int = 16;

/// Result of [`qemu_plugin_install`] after success.
const LOADED: c_int = 0;
const REFUSED: c_int = 1;

/// Operation code `QEMU_PLUGIN_INLINE_ADD_U64`: adds a constant to a counter.
const ADD: c_uint = 0;

#[repr(C)]
struct Block {
    _opaque: [u8; 0],
}

#[repr(C)]
struct Scoreboard {
    _opaque: [u8; 0],
}

/// Description of the emulated machine (`qemu_info_t`).
#[repr(C)]
pub struct Info {
    target: *const c_char,
    oldest: c_int,
    newest: c_int,
    system_emulation: bool,
    processors: c_int,
    most_processors: c_int,
}

/// Number that QEMU stores once for each CPU (`qemu_plugin_u64`).
#[repr(C)]
#[derive(Clone, Copy)]
struct PerCpu {
    scoreboard: *mut Scoreboard,
    offset: usize,
}

// SAFETY: the declarations are those of version 7 of the interface. QEMU has this version, because
// it would otherwise refuse to load the plugin.
unsafe extern "C" {
    fn qemu_plugin_scoreboard_new(element_size: usize) -> *mut Scoreboard;
    fn qemu_plugin_u64_sum(entry: PerCpu) -> u64;
    fn qemu_plugin_register_vcpu_tb_trans_cb(
        id: u64,
        callback: extern "C" fn(*mut Block, *mut c_void),
        userdata: *mut c_void,
    );
    fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    fn qemu_plugin_tb_vaddr(block: *const Block) -> u64;
    fn qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(
        block: *mut Block,
        operation: c_uint,
        entry: PerCpu,
        operand: u64,
    );
}

/// Counters of one CPU.
#[repr(C)]
struct Counts {
    kernel: u64,
    user: u64,
}

/// Instruction counts since QEMU started, separately for each CPU.
#[derive(Clone, Copy)]
pub struct Counters {
    scoreboard: *mut Scoreboard,
}

// SAFETY: the scoreboard belongs to QEMU and is never freed, and any thread may call its functions.
unsafe impl Send for Counters {}

impl Counters {
    fn new() -> Self {
        // SAFETY: the function has no preconditions; QEMU exits if it has no memory.
        let scoreboard = unsafe { qemu_plugin_scoreboard_new(size_of::<Counts>()) };
        Self { scoreboard }
    }

    fn kernel(self) -> PerCpu {
        PerCpu {
            scoreboard: self.scoreboard,
            offset: std::mem::offset_of!(Counts, kernel),
        }
    }

    fn user(self) -> PerCpu {
        PerCpu {
            scoreboard: self.scoreboard,
            offset: std::mem::offset_of!(Counts, user),
        }
    }

    /// Returns the sums over all CPUs: kernel, user.
    pub fn read(self) -> (u64, u64) {
        let sum = |entry| {
            // SAFETY: the entry is in a scoreboard of this plugin. The scoreboard never moves,
            // because there are at most ROOM CPUs (see `suits`). QEMU allows CPUs to add whole
            // words concurrently.
            unsafe { qemu_plugin_u64_sum(entry) }
        };
        (sum(self.kernel()), sum(self.user()))
    }

    /// Makes QEMU add the block's instructions to the counters each time it executes the block.
    fn count(self, block: *mut Block) {
        // SAFETY: only `translated` calls this function, with the block that QEMU is translating.
        let (instructions, address) =
            unsafe { (qemu_plugin_tb_n_insns(block), qemu_plugin_tb_vaddr(block)) };
        let entry = match crate::is_kernel(address) {
            true => self.kernel(),
            false => self.user(),
        };
        // SAFETY: the block is the one that QEMU is translating. The entry is in a scoreboard of
        // this plugin, which is never freed.
        unsafe {
            qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(
                block,
                ADD,
                entry,
                instructions as u64,
            );
        }
    }
}

/// Callback of QEMU for each block that it translates.
extern "C" fn translated(block: *mut Block, scoreboard: *mut c_void) {
    let scoreboard = scoreboard.cast();
    Counters { scoreboard }.count(block);
}

/// Checks that QEMU emulates a supported target with a supported number of CPUs.
fn suits(info: &Info, target: &[u8]) -> Result<(), String> {
    if !info.system_emulation || target != TARGET {
        return Err("only qemu-system-x86_64 is supported".into());
    }
    if !(1..=ROOM).contains(&info.most_processors) {
        return Err(format!("up to {ROOM} CPUs are supported"));
    }
    Ok(())
}

/// Entry point that QEMU calls when it loads the plugin.
///
/// # Safety
/// Only QEMU may call this: `info` and the `count` strings at `arguments` must be valid.
#[no_mangle]
pub unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    info: *const Info,
    count: c_int,
    arguments: *const *const c_char,
) -> c_int {
    // SAFETY: QEMU passes a valid description, which does not change during this call.
    let info = unsafe { &*info };
    // SAFETY: the target name is a string that is valid as long as the description.
    let target = unsafe { CStr::from_ptr(info.target) };
    let options: Vec<String> = (0..usize::try_from(count).unwrap_or(0))
        .map(|i| {
            // SAFETY: QEMU passes `count` pointers to strings, and `i` is less than `count`.
            let text = unsafe { CStr::from_ptr(*arguments.add(i)) };
            text.to_string_lossy().into_owned()
        })
        .collect();
    let counters = Counters::new();
    let ready = suits(info, target.to_bytes()).and_then(|()| crate::serve(&options, counters));
    if let Err(why) = ready {
        eprintln!("extoll_insns: {why}");
        return REFUSED;
    }
    // SAFETY: the function has the callback's signature and stays loaded, because the plugin is
    // never uninstalled. The last argument is a scoreboard that is never freed.
    unsafe {
        qemu_plugin_register_vcpu_tb_trans_cb(id, translated, counters.scoreboard.cast());
    }
    LOADED
}

/// Starts a thread that receives no signals. QEMU waits for some signals in its own threads and has
/// no handlers for them.
pub fn spawn(work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut old = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are valid memory. The first call initialises the set that the second call
    // reads.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr());
    }
    // The new thread inherits the signal mask of this thread.
    let thread = std::thread::Builder::new().name("insns".into()).spawn(work);
    // SAFETY: the call above has initialised the set. It cannot fail with valid arguments.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), std::ptr::null_mut());
    }
    thread.map(drop)
}
