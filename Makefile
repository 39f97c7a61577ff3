# The few commands a visitor needs; everything else is `cargo xtask --help`.

.PHONY: build install uninstall dist deb demo test field bench trackers

# A shell with an empty environment names neither the home directory nor where cargo is.
HOME ?= $(shell getent passwd $$(id -u) | cut -d: -f6)
export HOME
export PATH := $(or $(PATH),/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin):$(HOME)/.cargo/bin:/usr/local/cargo/bin

TARGET := $(or $(CARGO_TARGET_DIR),target)

build:
	cargo build --release --package undying-cli
	@mkdir -p $(TARGET)/release
	@ln -sfn ../x86_64-unknown-linux-gnu/release/undying $(TARGET)/release/undying

PREFIX ?= /usr/local

# The built program, its manual page, completions and documents: make install PREFIX=/usr/local DESTDIR=
# Root often has no cargo, so this does not build.
install:
	@test -x $(TARGET)/release/undying || { echo "make install: there is no $(TARGET)/release/undying; run \`make build\` first" >&2; exit 1; }
	packaging/install.sh $(TARGET)/release/undying $(PREFIX) $(DESTDIR)

uninstall:
	packaging/uninstall.sh $(PREFIX) $(DESTDIR)

# A tarball for every distribution, and a package for Debian and Ubuntu, in target/dist.
dist: build
	@mkdir -p $(TARGET)/dist
	packaging/package.sh tar $(TARGET)/release/undying $(TARGET)/dist

deb: build
	@mkdir -p $(TARGET)/dist
	packaging/package.sh deb $(TARGET)/release/undying $(TARGET)/dist

# Programs that are killed and go on, one alone and four as a system.
demo: build
	@if [ -x demo/run.sh ]; then demo/run.sh; else cargo run --release --package undying-cli -- --help; fi

# Every check that a commit must pass. Tests that need root or a kernel feature say `unsupported: …` without it.
test:
	cargo xtask ci

# Real programs under undying, in one table; installs what is missing. `make field ONLY=redis` for one; needs root.
field:
	cargo build --package undying-cli
	tests/field/field.py --install $(if $(ONLY),--only $(ONLY)) $(if $(REPORT),--report $(REPORT))

# One file of benches/ per question; rows and plots go to target/benches/. `make bench QUICK=1` takes some minutes.
bench: build
	cargo build --release --package undying-engine --example bench_epochs
	benches/all.sh $(if $(QUICK),--quick)

# Every tracker on this kernel and on an older, emulated one, in one table. Half an hour; needs root.
trackers:
	cargo xtask trackers
