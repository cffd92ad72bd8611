"""A play without workers: ordinary clients, static and dynamic ones, on the group machine that knows them all."""
