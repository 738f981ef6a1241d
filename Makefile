# Extoll for Linux. `make help` lists the targets; docs/building.md explains them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
T ?=
export T
ENTER := scripts/enter

.PHONY: help setup build modules modules_install exlnd userland install_userland lint doc check check-full check-debug demo bench clean distclean

help:
	@echo 'make demo             boot two nodes and watch them talk TCP/IP over Extoll'
	@echo 'make check [T=pat]    the gate: lints, host tests, main scenarios (T: all tests whose names contain pat)'
	@echo 'make check-full [T=]  all scenarios with full volumes; can be interrupted and resumed'
	@echo 'make check-debug [T=] the scenarios on a self-built kernel with lock, memory and leak checkers (builds it first)'
	@echo 'make bench            EXN against virtio-net and e1000e: ratios, bus accesses and instructions per operation'
	@echo 'make setup            build root, kernel tree, guest images (the other targets do this when needed)'
	@echo 'make build            host programs: emulator, lab, tests'
	@echo 'make modules          extoll.ko, exn.ko, af_extl.ko for the stock Debian kernel named in versions.lock'
	@echo 'make modules_install  install them on this machine (INSTALL_MOD_PATH=dir for another root)'
	@echo 'make exlnd            with LUSTRE_SRC=dir: kexlnd.ko, Lustre networking, against a configured and built Lustre tree'
	@echo 'make userland         out/userland: tools, librma/libvelo/libsmfu, headers, manual pages'
	@echo 'make install_userland install them (PREFIX=/usr/local, DESTDIR=)'
	@echo 'make lint             rustfmt, clippy (host and kernel code), unsafe and documentation rules'
	@echo 'make doc              API documentation of kernel crates and user-space crate (out/target/doc)'
	@echo 'make clean            remove what was built'
	@echo 'make distclean        remove the build root and all caches too'

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
