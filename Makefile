# Extoll for Linux. `make help` lists the targets; docs/building.md explains them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
T ?=
export T
ENTER := scripts/enter

.PHONY: help setup build modules modules_install exlnd userland install_userland lint doc check check-full check-debug demo bench clean distclean

help:
	@echo 'make demo             boot two nodes that use TCP/IP over Extoll, and show each step'
	@echo 'make check [T=pat]    run the gate: lints, host tests, main scenarios (with T: all tests whose names contain pat)'
	@echo 'make check-full [T=]  run all tests with the full number of repetitions; run it again to resume after an interruption'
	@echo 'make check-debug [T=] run the scenarios on a debug kernel with lock, memory and leak checkers (builds it first)'
	@echo 'make bench            compare exn with virtio-net and e1000e: ratios, bus accesses and instructions per operation'
	@echo 'make setup            create the build root, kernel tree and guest images (other targets do this if needed)'
	@echo 'make build            build the host programs: emulator, lab, tests'
	@echo 'make modules          build the kernel modules (extoll.ko, exn.ko, af_extl.ko, ...) for the Debian kernel named in versions.lock'
	@echo 'make modules_install  install the modules on this machine (INSTALL_MOD_PATH=dir for another root)'
	@echo 'make exlnd            build kexlnd.ko (Lustre networking); LUSTRE_SRC=dir names a configured and built Lustre tree'
	@echo 'make userland         build tools, librma, libvelo, libsmfu, headers and manual pages in out/userland'
	@echo 'make install_userland install the contents of out/userland (PREFIX=/usr/local, DESTDIR=)'
	@echo 'make lint             check rustfmt, clippy (host and kernel code), unsafe and documentation rules'
	@echo 'make doc              build the API documentation of the kernel crates and the user-space crate (out/target/doc)'
	@echo 'make clean            remove all build products'
	@echo 'make distclean        remove all build products, the build root and all caches'

setup:
	@scripts/setup

build: setup
	@scripts/host-build

modules: setup
	@$(ENTER) scripts/modules

modules_install: modules
	@scripts/modules-install

# Only this target needs a Lustre tree.
exlnd: modules
	@scripts/exlnd "$(LUSTRE_SRC)"

userland: build
	@scripts/userland

install_userland: build
	@scripts/userland --install

lint: setup
	@scripts/lint

doc: modules
	@$(ENTER) scripts/rustdoc

check:
	@scripts/check

check-full:
	@scripts/check --full

check-debug:
	@scripts/setup --debug-kernel
	@scripts/check --debug

demo: build modules
	@scripts/demo

bench: build modules
	@scripts/bench

clean:
	@scripts/clean

distclean:
	@scripts/clean --all
