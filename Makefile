# The most common commands. `cargo xtask --help` lists further commands for developers.

.PHONY: build install uninstall dist deb demo test field bench trackers

# If the environment is empty, HOME and the directory of cargo in PATH are missing. These lines set both.
HOME ?= $(shell getent passwd $$(id -u) | cut -d: -f6)
export HOME
export PATH := $(or $(PATH),/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin):$(HOME)/.cargo/bin:/usr/local/cargo/bin

TARGET := $(or $(CARGO_TARGET_DIR),target)

build:
	cargo build --release --package undying-cli
	@mkdir -p $(TARGET)/release
	@ln -sfn ../x86_64-unknown-linux-gnu/release/undying $(TARGET)/release/undying

PREFIX ?= /usr/local

# Installs the built program, its manual page, completions and documents: make install PREFIX=/usr/local DESTDIR=
# `install` does not build the program, because root often has no cargo.
install:
	@test -x $(TARGET)/release/undying || { \
		echo "make install: $(TARGET)/release/undying does not exist; run \`make build\` first" >&2; exit 1; }
	packaging/install.sh $(TARGET)/release/undying $(PREFIX) $(DESTDIR)

# Removes the installed files. Use the same PREFIX and DESTDIR as for `install`.
uninstall:
	packaging/uninstall.sh $(PREFIX) $(DESTDIR)

# `dist` builds a tarball for all distributions, and `deb` a package for Debian and Ubuntu. Both are in target/dist.
dist: build
	@mkdir -p $(TARGET)/dist
	packaging/package.sh tar $(TARGET)/release/undying $(TARGET)/dist

deb: build
	@mkdir -p $(TARGET)/dist
	packaging/package.sh deb $(TARGET)/release/undying $(TARGET)/dist

# Runs the demo: kills redis-server, a Python program, a build, and four programs of a system. All of them continue.
demo: build
	@if [ -x demo/run.sh ]; then demo/run.sh; else cargo run --release --package undying-cli -- --help; fi

# Runs all checks that a commit must pass. If root or a kernel feature is missing, a test prints `unsupported: …`.
test:
	cargo xtask ci

# Tests real programs under undying, and prints one table. Installs missing programs. Needs root.
# `make field ONLY=redis` tests one program. REPORT=FILE also writes the table to FILE.
field:
	cargo build --package undying-cli
	tests/field/field.py --install $(if $(ONLY),--only $(ONLY)) $(if $(REPORT),--report $(REPORT))

# Runs all benchmarks. Each file of benches/ is one benchmark. Rows and plots are written to target/benches/.
# `make bench QUICK=1` runs short forms, which take some minutes.
bench: build
	cargo build --release --package undying-engine --example bench_epochs
	benches/all.sh $(if $(QUICK),--quick)

# Tests every tracker (code that finds written pages) on this kernel and on an older, emulated kernel. Prints one
# table. Takes half an hour, and needs root.
trackers:
	cargo xtask trackers
