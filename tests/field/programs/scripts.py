"""Languages with a short script. In each step, the script appends one line of the common recurrence."""
from lib.program import Job


class Script(Job):
    group = "language"
    runner = ()

    def program(self):
        return [*self.runner, self.path(self.source_name)]


class Perl(Script):
    name, needs, runner, source_name = "perl", {"perl": "perl"}, ("perl",), "job.pl"
    source = r'''
use strict; use IO::Handle; use Time::HiRes qw(sleep);
open(my $out, ">>", $ENV{FIELD_OUT}) or die; $out->autoflush(1);
my ($value, %table) = (1);
for my $step (1 .. $ENV{FIELD_STEPS}) {
    $value = ($value * 1021 + $step) % 1000003; $table{$step} = $value;
    print $out "$step $table{$step}\n"; sleep($ENV{FIELD_STEP_S});
}
'''


class Ruby(Script):
    name, needs, runner, source_name = "ruby", {"ruby": "ruby"}, ("ruby",), "job.rb"
    source = r'''
todo, done = Queue.new, Queue.new
Thread.new { value = 1; while (step = todo.pop); value = (value * 1021 + step) % 1000003; done << value; end }
counter = Fiber.new { step = 0; loop { Fiber.yield(step += 1) } }
File.open(ENV["FIELD_OUT"], "a") do |out|
  out.sync = true
  ENV["FIELD_STEPS"].to_i.times do
    todo << (step = counter.resume)
    out.puts "#{step} #{done.pop}"
    sleep ENV["FIELD_STEP_S"].to_f
  end
end
'''


class Lua(Script):
    name, needs, runner, source_name = "lua", {"lua5.4": "lua5.4"}, ("lua5.4",), "job.lua"
    # Lua has no function to sleep, so the script starts the program sleep.
    source = r'''
local out, value = io.open(os.getenv("FIELD_OUT"), "a"), 1
local steps = coroutine.wrap(function() for step = 1, tonumber(os.getenv("FIELD_STEPS")) do coroutine.yield(step) end end)
for step in steps do
  value = (value * 1021 + step) % 1000003
  out:write(string.format("%d %d\n", step, value)) out:flush()
  os.execute("sleep " .. os.getenv("FIELD_STEP_S"))
end
'''


class Tcl(Script):
    name, needs, runner, source_name = "tcl", {"tclsh": "tcl"}, ("tclsh",), "job.tcl"
    source = r'''
set out [open $env(FIELD_OUT) a]
set value 1
for {set step 1} {$step <= $env(FIELD_STEPS)} {incr step} {
    set value [expr {($value * 1021 + $step) % 1000003}]
    puts $out "$step $value"; flush $out
    after [expr {int(1000 * $env(FIELD_STEP_S))}]
}
'''


class Guile(Script):
    name, needs, runner, source_name = "guile", {"guile": "guile-3.0"}, ("guile", "--no-auto-compile", "-s"), "job.scm"
    source = r'''
(define out (open-file (getenv "FIELD_OUT") "a"))
(define pause (inexact->exact (round (* 1000000 (string->number (getenv "FIELD_STEP_S"))))))
(let loop ((step 1) (value 1))
  (if (<= step (string->number (getenv "FIELD_STEPS")))
      (let ((next (modulo (+ (* value 1021) step) 1000003)))
        (format out "~a ~a\n" step next) (force-output out) (usleep pause)
        (loop (+ step 1) next))))
'''


class Sbcl(Script):
    name, needs, source_name = "sbcl", {"sbcl": "sbcl"}, "job.lisp"
    runner = ("sbcl", "--script")
    source = r'''
(with-open-file (out (sb-ext:posix-getenv "FIELD_OUT") :direction :output :if-exists :append)
  (let ((value 1) (pause (read-from-string (sb-ext:posix-getenv "FIELD_STEP_S"))))
    (loop for step from 1 to (parse-integer (sb-ext:posix-getenv "FIELD_STEPS")) do
      (setf value (mod (+ (* value 1021) step) 1000003))
      (format out "~d ~d~%" step value) (finish-output out) (sleep pause))))
'''


class Php(Script):
    name, needs, runner, source_name = "php", {"php": "php-cli"}, ("php",), "job.php"
    source = r'''<?php
[$value, $table, $out] = [1, [], fopen(getenv("FIELD_OUT"), "a")];
for ($step = 1; $step <= (int)getenv("FIELD_STEPS"); $step++) {
    $value = ($value * 1021 + $step) % 1000003; $table["k$step"] = $value;
    fwrite($out, "$step {$table["k$step"]}\n");
    usleep((int)(1e6 * (float)getenv("FIELD_STEP_S")));
}
'''


class Erlang(Script):
    name, needs, source_name = "erlang", {"escript": "erlang-base"}, "job.escript"
    runner = ("escript",)
    source = r'''#!/usr/bin/env escript
main(_) ->
    {ok, Out} = file:open(os:getenv("FIELD_OUT"), [append, raw]),
    Pause = round(1000 * list_to_float(os:getenv("FIELD_STEP_S"))),
    Self = self(),
    Worker = spawn(fun() -> worker(Self, 1) end),
    [begin
         Worker ! Step,
         receive Value -> file:write(Out, io_lib:format("~b ~b~n", [Step, Value])) end,
         timer:sleep(Pause)
     end || Step <- lists:seq(1, list_to_integer(os:getenv("FIELD_STEPS")))],
    ok.
worker(To, Value) -> receive Step -> Next = (Value * 1021 + Step) rem 1000003, To ! Next, worker(To, Next) end.
'''


class Ocaml(Script):
    """OCaml, compiled to machine code."""

    name, needs, source_name = "ocaml", {"ocamlopt": "ocaml-nox"}, "job.ml"
    source = r'''
let () =
  let out = open_out_gen [Open_append; Open_creat] 0o644 (Sys.getenv "FIELD_OUT") in
  let table = Hashtbl.create 16 in
  Hashtbl.add table 0 1;
  for step = 1 to int_of_string (Sys.getenv "FIELD_STEPS") do
    Hashtbl.add table step ((Hashtbl.find table (step - 1) * 1021 + step) mod 1000003);
    Printf.fprintf out "%d %d\n" step (Hashtbl.find table step); flush out;
    Unix.sleepf (float_of_string (Sys.getenv "FIELD_STEP_S"))
  done
'''

    def prepare(self):
        super().prepare()
        self.tool("ocamlopt", "-o", self.path("job"), "-I", "+unix", "unix.cmxa", self.path("job.ml"))

    def program(self):
        return [self.path("job")]


class Bash(Script):
    """A pipeline of shells. Each step starts a child process."""

    name, needs, runner, source_name = "bash", {"bash": "bash"}, ("bash",), "job.sh"
    source = r'''
for ((step = 1; step <= FIELD_STEPS; step++)); do echo $step; sleep $FIELD_STEP_S; done | {
    value=1
    while read -r step; do value=$(((value * 1021 + step) % 1000003)); echo "$step $value"; done >>"$FIELD_OUT"
}
'''
