"""Benchmarks and studies of semigpc, one script for each question. They are not in the installed
package; see README.md.
"""
