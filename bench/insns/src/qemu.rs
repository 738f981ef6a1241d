//! QEMU's plugin interface, version 7 (include/plugins/qemu-plugin.h, docs/devel/tcg-plugins.rst): the few of its functions that
//! counting needs, and all unsafe code of the plugin.

use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::mem::MaybeUninit;

/// Version of the interface that the declarations below are of. QEMU refuses to load a plugin whose version it does not have.
#[no_mangle]
#[allow(non_upper_case_globals)]
pub static qemu_plugin_version: c_int = 7;

/// What the bit in [`crate::is_kernel`] is true of.
const TARGET: &[u8] = b"x86_64";

/// Processors that QEMU makes room for at first. It moves counters when there are more.
const ROOM: c_int = 16;

/// Statuses of [`qemu_plugin_install`].
const LOADED: c_int = 0;
const REFUSED: c_int = 1;

/// `QEMU_PLUGIN_INLINE_ADD_U64`.
const ADD: c_uint = 0;

#[repr(C)]
struct Block {
    _opaque: [u8; 0],
}

#[repr(C)]
struct Scoreboard {
    _opaque: [u8; 0],
}

/// `qemu_info_t`.
#[repr(C)]
pub struct Info {
    target: *const c_char,
    oldest: c_int,
    newest: c_int,
    system_emulation: bool,
    processors: c_int,
    most_processors: c_int,
}

/// `qemu_plugin_u64`: a number per processor.
#[repr(C)]
#[derive(Clone, Copy)]
struct PerCpu {
    scoreboard: *mut Scoreboard,
    offset: usize,
}

// SAFETY: names, arguments and results are those of the interface's version 7, which QEMU has, or it had not loaded the plugin.
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

/// The numbers of each processor.
#[repr(C)]
struct Counts {
    kernel: u64,
    user: u64,
}

/// Instructions since the start.
#[derive(Clone, Copy)]
pub struct Counters {
    scoreboard: *mut Scoreboard,
}

// SAFETY: the scoreboard is QEMU's and is never freed; its functions may be called by any thread.
unsafe impl Send for Counters {}

impl Counters {
    fn new() -> Self {
        // SAFETY: needs nothing; QEMU ends itself when it has no memory.
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

    /// Of all processors: kernel, user.
    pub fn read(self) -> (u64, u64) {
        let sum = |entry| {
            // SAFETY: the entry lies in a scoreboard of this plugin, which is not moved, since there are at most ROOM
            // processors (see `suits`). Processors add meanwhile by whole words, as QEMU intends it.
            unsafe { qemu_plugin_u64_sum(entry) }
        };
        (sum(self.kernel()), sum(self.user()))
    }

    /// Makes a block count its instructions whenever it is executed.
    fn count(self, block: *mut Block) {
        // SAFETY: only called by `translated`, with the block that QEMU is translating.
        let (instructions, address) =
            unsafe { (qemu_plugin_tb_n_insns(block), qemu_plugin_tb_vaddr(block)) };
        let entry = match crate::is_kernel(address) {
            true => self.kernel(),
            false => self.user(),
        };
        // SAFETY: the block is as above; the entry lies in a scoreboard of this plugin, which is never freed.
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

/// QEMU calls this for each block that it translates.
extern "C" fn translated(block: *mut Block, scoreboard: *mut c_void) {
    let scoreboard = scoreboard.cast();
    Counters { scoreboard }.count(block);
}

/// Whether the emulation is one whose instructions can be told apart and counted.
fn suits(info: &Info, target: &[u8]) -> Result<(), String> {
    if !info.system_emulation || target != TARGET {
        return Err("only qemu-system-x86_64 is supported".into());
    }
    if !(1..=ROOM).contains(&info.most_processors) {
        return Err(format!("at most {ROOM} processors are supported"));
    }
    Ok(())
}

/// QEMU calls this when it loads the plugin.
///
/// # Safety
/// To be called by QEMU only: `info` and the `count` strings at `arguments` are valid.
#[no_mangle]
pub unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    info: *const Info,
    count: c_int,
    arguments: *const *const c_char,
) -> c_int {
    // SAFETY: QEMU passes a valid description, which nobody changes during this call.
    let info = unsafe { &*info };
    // SAFETY: the name in it is a string that lives as long.
    let target = unsafe { CStr::from_ptr(info.target) };
    let options: Vec<String> = (0..usize::try_from(count).unwrap_or(0))
        .map(|i| {
            // SAFETY: QEMU passes `count` pointers to strings, and `i` is below.
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
    // SAFETY: the function has the callback's signature and stays loaded, since the plugin is never uninstalled; what it is given
    // is a scoreboard that is never freed.
    unsafe {
        qemu_plugin_register_vcpu_tb_trans_cb(id, translated, counters.scoreboard.cast());
    }
    LOADED
}

/// A thread that gets none of the process's signals: QEMU waits for some of them in threads of its own, and has no handlers for those.
pub fn spawn(work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut old = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are memory of the right type; the second call reads what the first has written.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr());
    }
    // The new thread inherits the mask.
    let thread = std::thread::Builder::new().name("insns".into()).spawn(work);
    // SAFETY: the call above has filled the set; it can't fail with valid arguments.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), std::ptr::null_mut());
    }
    thread.map(drop)
}
